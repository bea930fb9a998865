#!/usr/bin/env bash
# Windows' Python as a command, also as COMFYUI_PYTHON. set_up.sh copies it into the folder that it makes. WINEPREFIX may
# name another prefix.
folder=$(dirname "$(realpath "$0")")
export WINEPREFIX=${WINEPREFIX:-$folder/prefix0} WINEDEBUG=-all
export KMP_AFFINITY=disabled # Intel's OpenMP asks for NUMA nodes, which Wine 8 does not tell
[ -p /dev/stdin ] || exec </dev/null
exec wine "$folder/python/python.exe" "$@" > >(cat) 2> >(cat >&2) # a file or a terminal is an invalid handle there
