#!/usr/bin/env bash
# A leg for the codec on one GPU, from the root of the project: Kokoro speaks, the codec learns without critics, then its
# decoder with them. See README.md.
#
# W            a folder to work in
# MODEL        Kokoro's int8 ONNX file; KOKORO: folder of voices.npz and vocab.json; LINES_FILES: sentences, by `read`
# T0           seconds since 1970 at which the leg began; A_END, B_END: seconds after it at which the two parts are over
# START        optional, a codec folder to go on from
set -eu
W=${1:?a folder to work in}; mkdir -p "$W/data" "$W/result"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
say() { echo "[$(($(date +%s) - T0)) s] $*"; }
say speech
for i in 0 1 2; do
  OMP_NUM_THREADS=3 python3 -m training.speak --model "${MODEL:?}" --kokoro "${KOKORO:?}" --lines ${LINES_FILES:?} \
    --out "$W/data/$i" --shards 1 --part $i/3 --seed 5$i \
    --home-share 0.4 > "$W/speak$i.log" 2>&1 &
done
wait
for i in 0 1 2; do for e in i16 sym json; do mv "$W/data/$i/000.$e" "$W/data/$i.$e"; done; done
tail -qn 1 "$W"/speak?.log
[ -z "${START:-}" ] || cp -r "$START" "$W/result/codec"
say "codec without critics"
python3 -m training.train_codec --data "$W/data" --out "$W/result/codec" --until $((T0 + A_END - 4)) --rate 5e-4 \
  --critic-share 2 ${START:+--resume}
say "decoder with critics"
python3 -m training.train_codec --data "$W/data" --out "$W/result/codec" --until $((T0 + B_END - 4)) \
  --critic-share 0 --judged 1.0 --fixed-codes --focus 0.3 --voice heart --resume
say done
