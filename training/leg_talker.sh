#!/usr/bin/env bash
# A leg for the talker on one GPU, from the root of the project: Kokoro speaks, the codec codes it, and the talker
# learns, beside it the codec's decoder if DECODER is set. See README.md.
#
# W            a folder to work in
# MODEL        Kokoro's int8 ONNX file; KOKORO: folder of voices.npz and vocab.json
# LINES_FILE   sentences to learn from, HELD_FILE held-out ones, both by `read`
# CODEC        folder of the codec
# T0           seconds since 1970 at which the leg began, and seconds after it: SPEECH_END, from when no shard is begun;
#              TALKER_AT, when learning begins; END, when all is over
set -u
W=${1:?a folder to work in}; mkdir -p "$W/data" "$W/result"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
now() { echo $(($(date +%s) - T0)); }
say() { echo "[$(now) s] $*"; }
speak() { OMP_NUM_THREADS=2 python3 -m training.speak --model "${MODEL:?}" --kokoro "${KOKORO:?}" "$@"; }
say speech
n=${SPEAKERS:-3}
for ((i = 0; i < n; i++)); do
  ( speak --lines "${LINES_FILE:?}" --out "$W/data/p$i" --lot 1 --shards 99 --part $i/$n --seed 7$i \
      --minutes "$(awk "BEGIN { print ($SPEECH_END - $(now)) / 60 }")" > "$W/speak$i.log" 2>&1
    touch "$W/speak$i.done" ) &
  python3 -m training.code_lots --data "$W/data/p$i" --codec "${CODEC:?}" --out "$W/parts$i" --done "$W/speak$i.done" \
    --each 1 > "$W/codes$i.log" 2>&1 &
done
( speak --lines "${HELD_FILE:?}" --out "$W/held" --shards 1 --seed 99
  python3 -m training.encode --data "$W/held" --codec "$CODEC" --out "$W/heldout.safetensors" ) > "$W/held.log" 2>&1 &
while [ "$(now)" -lt "$TALKER_AT" ] || [ ! -f "$W/parts0/part000.safetensors" ] || [ ! -f "$W/heldout.safetensors" ]; do
  sleep 0.5
done
parts=(); for ((k = 0; k < 40; k++)); do for ((i = 0; i < n; i++)); do parts+=("$W/parts$i/part$(printf %03d $k).safetensors"); done; done
talker() {
  python3 -m training.train_talker --data "${parts[@]}" --heldout "$W/heldout.safetensors" --out "$W/result/talker" \
    --workers "${WORKERS:-9}" --minutes "$(awk "BEGIN { print ($END - 7 - $(now)) / 60 }")" --test-every 40 \
    --save-every 75 ${TALKER_OPTIONS:-} "$@" 2>&1
}
decoder() {  # learns on from the codes of the first shards
  mkdir -p "$W/data/first"
  for ((i = 0; i < n; i++)); do for e in i16 sym json; do ln "$W/data/p$i/lot00/000.$e" "$W/data/first/$i.$e"; done; done
  cp -r "$CODEC" "$W/result/codec"
  python3 -m training.train_codec --data "$W/data/first" --out "$W/result/codec" --until $((T0 + END - 12)) \
    --critic-share 0 --judged 1.0 --fixed-codes --voice heart --resume ${DECODER_OPTIONS:-} > "$W/decoder.log" 2>&1
  touch "$W/decoder.done"
}
say learning; tail -qn 1 "$W"/codes?.log
[ -z "${DECODER:-}" ] || decoder &
talker || { say "it failed; without compiled code"; talker --no-compile; } || say "there is no talker"
wait
tail -qn 1 "$W"/codes?.log "$W"/speak?.log "$W"/decoder.log
say done; touch "$W/all.done"
