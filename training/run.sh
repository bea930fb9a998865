#!/usr/bin/env bash
# One unattended leg of training on one GPU: speech is synthesised, the codec learns, speech becomes codes, the talker
# learns. Run it from the repository's root; it needs flite and espeak-ng (Debian: flite espeak-ng) and torch.
#
#   training/run.sh WORK [EARLIER]
#
# WORK     an empty folder for the data (up to 50 GB); what is to be kept lies in WORK/result, in files under 16 MB
# EARLIER  a result folder of an earlier leg: its codec stays as it is; its talker, where it has one, goes on learning
#
# Speech is made in lots. The talker begins with the first, and the others come to it as soon as they are made and
# coded. A talker that fails is begun again without compiled code, and never takes the codec with it.
set -euo pipefail

work=$1
earlier=${2:-}
seconds=${SECONDS_IN_ALL:-1590}       # of this leg
first_hours=${FIRST_HOURS:-30}        # of speech before anything learns
lots=${LOTS:-5}                       # of speech made while something does
lot_hours=${LOT_HOURS:-40}
codec_minutes=${CODEC_MINUTES:-9.5}
heldout_hours=${HELDOUT_HOURS:-0.5}
seed=${SEED:-0}                       # of the speech; another one in every leg
cores=${CORES:-$(nproc --all)}
readers=${READERS:-$((cores > 15 ? 6 : 1))}  # processes that make the talker's batches
export TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
[ -z "${SETUP:-}" ] || . "$SETUP"
python=${PYTHON:-python3}
result=$work/result
mkdir -p "$result"
say() { echo "[$SECONDS s] $*"; }

speech() {  # speech NAME HOURS WORKERS [OPTIONS]
    nice $python -m training.synthesise --out "$work/$1" --hours "$2" --workers "$3" --shards $((cores > 4 ? 128 : 2)) "${@:4}"
}
encode() {
    until [ -f "$work/codec.ready" ]; do sleep 1; done
    $python -m training.encode --codec "$result/codec" --out "$work/$1.safetensors" --data "$work/$1"
}
more() {
    for ((lot = 1; lot <= lots; lot++)); do
        speech "lot$lot" "$lot_hours" $((cores > readers + 4 ? cores - readers : 1)) --seed $((100 * seed + lot))
        encode "lot$lot" &
    done
    wait
}
talker() {
    local resume=() data=() left=$((seconds - SECONDS))
    [ ! -d "$earlier/talker" ] || resume=(--resume "$earlier/talker")
    [ ! -d "$result/talker" ] || resume=(--resume "$result/talker")
    for ((lot = 0; lot <= lots; lot++)); do data+=("$work/lot$lot.safetensors"); done
    say "talker, for $left s $*"
    $python -m training.train_talker --data "${data[@]}" --heldout "$work/heldout.safetensors" \
        --out "$result/talker" --workers "$readers" --seed "$seed" --minutes "$(awk "BEGIN { print $left / 60 }")" \
        "${resume[@]}" ${TALKER_OPTIONS:-} "$@"
}

say "speech, first lot"
speech heldout "$heldout_hours" $((cores > 4 ? 4 : 1)) --split heldout --seed 0 &
heldout=$!
speech lot0 "$first_hours" "$cores" --seed $((100 * seed))
wait "$heldout"
say "the other lots of speech, beside what follows"
more &
if [ -z "$earlier" ]; then
    say "codec"
    $python -m training.train_codec --data "$work/lot0" --out "$result/codec" --minutes "$codec_minutes" ${CODEC_OPTIONS:-}
else
    cp -r "$earlier/codec" "$result/codec"
fi
touch "$work/codec.ready"
say "speech to codes"
encode heldout &
heldout=$!
encode lot0
wait "$heldout"
talker || talker --no-compile || say "there is no talker"
say "done"
ls -l "$result"/*
