#!/usr/bin/env bash
# One unattended leg of training on one GPU: speech is synthesised, the codec learns, speech becomes codes, the talker
# learns. Run it from the repository's root; it needs flite and espeak-ng (Debian: flite espeak-ng) and torch.
#
#   training/run.sh WORK [EARLIER]
#
# WORK     an empty folder for the data (up to 20 GB); what is to be kept lies in WORK/result, in files under 16 MB
# EARLIER  a result folder of an earlier leg: its codec stays as it is; its talker, where it has one, goes on learning
set -euo pipefail

work=$1
earlier=${2:-}
seconds=${SECONDS_IN_ALL:-1590}       # of this leg
first_hours=${FIRST_HOURS:-14}        # of speech before the codec begins
more_hours=${MORE_HOURS:-110}         # of speech made while it learns
codec_minutes=${CODEC_MINUTES:-9.5}
more_minutes=${MORE_MINUTES:-8}       # at most, for the second lot of speech
heldout_hours=${HELDOUT_HOURS:-1.5}
seed=${SEED:-0}                       # of the speech; another one in every leg
cores=${CORES:-$(nproc --all)}
export TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
[ -z "${SETUP:-}" ] || . "$SETUP"
python=${PYTHON:-python3}
result=$work/result
mkdir -p "$result"
say() { echo "[$SECONDS s] $*"; }

say "speech, first lot"
$python -m training.synthesise --out "$work/heldout" --split heldout --hours "$heldout_hours" --seed 0 --shards 32 --workers "$cores"
if [ -z "$earlier" ]; then
    $python -m training.synthesise --out "$work/first" --hours "$first_hours" --seed $((2 * seed)) --workers "$cores"
    say "codec, and the second lot of speech beside it"
    $python -m training.synthesise --out "$work/more" --hours "$more_hours" --seed $((2 * seed + 1)) \
        --minutes "$more_minutes" --workers $((cores > 4 ? cores - 2 : 1)) --shards $((cores > 4 ? 256 : 4)) &
    more=$!
    $python -m training.train_codec --data "$work/first" --out "$result/codec" --minutes "$codec_minutes" ${CODEC_OPTIONS:-}
    wait "$more"
else
    cp -r "$earlier/codec" "$result/codec"
    $python -m training.synthesise --out "$work/more" --hours "$more_hours" --seed $((2 * seed + 1)) \
        --minutes "$more_minutes" --workers "$cores" --shards $((cores > 4 ? 256 : 4))
fi

say "speech to codes"
lots=("$work/more")
[ ! -d "$work/first" ] || lots+=("$work/first")
$python -m training.encode --data "$work/heldout" --codec "$result/codec" --out "$work/heldout.safetensors"
$python -m training.encode --data "${lots[@]}" --codec "$result/codec" --out "$work/train.safetensors"

resume=()
[ ! -d "$earlier/talker" ] || resume=(--resume "$earlier/talker")
left=$((seconds - SECONDS))
say "talker, for $left s"
$python -m training.train_talker --data "$work/train.safetensors" --heldout "$work/heldout.safetensors" \
    --out "$result/talker" --minutes "$(awk "BEGIN { print $left / 60 }")" --seed "$seed" \
    "${resume[@]}" ${TALKER_OPTIONS:-}
say "done"
ls -l "$result"/*
