#!/usr/bin/env bash
# A leg for the talker on one GPU or two, from the root of the project: Kokoro speaks, the codec codes it, and the talker
# learns. See README.md.
#
# W            a folder to work in
# MODEL        Kokoro's int8 ONNX file; KOKORO: folder of voices.npz and vocab.json
# LINES_FILES  sentences to learn from, HELD_FILE held-out ones, both by `read`
# CODEC        folder of the codec
# SPEECH_GPUS, TALKER_GPU  "0" and 0 without; SPEAKERS: processes that speak, in turn on those GPUs
# JUDGE        seeds by which the benchmarks' prose is spoken at the end, without mending, to be judged
# T0           seconds since 1970 at which the leg began, and seconds after it: SPEECH_END, from when no shard is begun;
#              TALKER_AT, when learning begins; END, when all is over
set -u
W=${1:?a folder to work in}; mkdir -p "$W/data" "$W/result"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
now() { echo $(($(date +%s) - T0)); }
say() { echo "[$(now) s] $*"; }
gpus=(${SPEECH_GPUS:-0})
speak() {
  CUDA_VISIBLE_DEVICES=$1 OMP_NUM_THREADS=2 python3 -m training.speak --model "${MODEL:?}" \
    --kokoro "${KOKORO:?}" --codec "${CODEC:?}" "${@:2}"
}
say speech
n=${SPEAKERS:-3}
for ((i = 0; i < n; i++)); do
  speak "${gpus[i % ${#gpus[@]}]}" --lines ${LINES_FILES:?} --out "$W/data/p$i" --shards 99 --size 1024 --part $i/$n --seed 7$i \
    --minutes "$(awk "BEGIN { print ($SPEECH_END - $(now)) / 60 }")" > "$W/speak$i.log" 2>&1 &
done
speak "${gpus[0]}" --lines "${HELD_FILE:?}" --out "$W/held" --shards 1 --seed 99 > "$W/held.log" 2>&1 &
while [ "$(now)" -lt "$TALKER_AT" ] || ! ls "$W"/data/p*/part000.safetensors "$W/held/part000.safetensors" \
  > /dev/null 2>&1; do sleep 0.5; done
parts=()
for ((k = 0; k < 99; k++)); do
  for ((i = 0; i < n; i++)); do parts+=("$W/data/p$i/part$(printf %03d $k).safetensors"); done
done
talker() {
  CUDA_VISIBLE_DEVICES=${TALKER_GPU:-0} python3 -m training.train_talker --data "${parts[@]}" \
    --heldout "$W/held/part000.safetensors" --out "$W/result/talker" --workers "${WORKERS:-9}" \
    --minutes "$(awk "BEGIN { print ($END - 7 - $(now)) / 60 }")" --test-every 40 --save-every 75 \
    ${TALKER_OPTIONS:-} "$@" 2>&1
}
say learning; tail -qn 1 "$W"/speak?.log
talker || { say "it failed; without compiled code"; talker --no-compile; } || say "there is no talker"
wait
tail -qn 1 "$W"/speak?.log
python3 -m training.export --talker "$W/result/talker" --codec "$CODEC" --out "$W/result/embedded" --sharpness "${SHARPNESS:-3.2}"
for seed in ${JUDGE:-}; do
  python3 benchmarks/check.py speak "$W/result/said$seed.npz" --device cuda --seconds 30 --no-check --whole --seed "$seed" \
    --model "$W/result/embedded"
done
say done; touch "$W/all.done"
