#!/usr/bin/env bash
# One unattended leg of training on one GPU: speech is synthesised, the codec learns, speech becomes codes, the talker
# learns. Run it from the repository's root; it needs flite and espeak-ng (Debian: flite espeak-ng) and torch.
#
#   training/run.sh WORK [EARLIER]
#
# WORK     an empty folder for the data (up to 40 GB); what is to be kept lies in WORK/result, in files under 16 MB
# EARLIER  a result folder of an earlier leg: its codec stays as it is; its talker, where it has one, goes on learning
#
# The talker begins with the first lot of speech; the second comes to it as soon as that is made and coded. A talker
# that fails is begun again without compiled code, and never takes the codec with it.
set -euo pipefail

work=$1
earlier=${2:-}
seconds=${SECONDS_IN_ALL:-1590}       # of this leg
first_hours=${FIRST_HOURS:-40}        # of speech before anything learns
more_hours=${MORE_HOURS:-110}         # of speech made while something does
codec_minutes=${CODEC_MINUTES:-9.5}
more_minutes=${MORE_MINUTES:-8}       # at most, for the second lot of speech
heldout_hours=${HELDOUT_HOURS:-1}
seed=${SEED:-0}                       # of the speech; another one in every leg
cores=${CORES:-$(nproc --all)}
readers=${READERS:-$((cores > 15 ? 8 : 1))}  # processes that make the talker's batches
export TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
[ -z "${SETUP:-}" ] || . "$SETUP"
python=${PYTHON:-python3}
result=$work/result
mkdir -p "$result"
say() { echo "[$SECONDS s] $*"; }
encode() { $python -m training.encode --codec "$result/codec" --out "$work/$1.safetensors" --data "$work/$1"; }
more() {  # and its codes, once those of the first lot tell that there is a codec
    local workers=$((cores > readers + 4 ? cores - readers - 2 : 1))
    $python -m training.synthesise --out "$work/more" --hours "$more_hours" --seed $((2 * seed + 1)) \
        --minutes "$more_minutes" --workers "$workers" --shards $((cores > 4 ? 256 : 4))
    while [ ! -f "$work/first.safetensors" ]; do sleep 1; done
    encode more
}
talker() {
    local resume=() left=$((seconds - SECONDS))
    [ ! -d "$earlier/talker" ] || resume=(--resume "$earlier/talker")
    [ ! -d "$result/talker" ] || resume=(--resume "$result/talker")
    say "talker, for $left s $*"
    $python -m training.train_talker --data "$work/first.safetensors" "$work/more.safetensors" \
        --heldout "$work/heldout.safetensors" --out "$result/talker" --workers "$readers" --seed "$seed" \
        --minutes "$(awk "BEGIN { print $left / 60 }")" "${resume[@]}" ${TALKER_OPTIONS:-} "$@"
}

say "speech, first lot"
$python -m training.synthesise --out "$work/heldout" --split heldout --hours "$heldout_hours" --seed 0 --shards 32 --workers "$cores"
$python -m training.synthesise --out "$work/first" --hours "$first_hours" --seed $((2 * seed)) --workers "$cores" \
    --shards $((cores > 4 ? 128 : 4))
say "the second lot of speech, beside what follows"
more &
if [ -z "$earlier" ]; then
    say "codec"
    $python -m training.train_codec --data "$work/first" --out "$result/codec" --minutes "$codec_minutes" ${CODEC_OPTIONS:-}
else
    cp -r "$earlier/codec" "$result/codec"
fi
say "speech to codes"
encode heldout
encode first
talker || talker --no-compile || say "there is no talker"
say "done"
ls -l "$result"/*
