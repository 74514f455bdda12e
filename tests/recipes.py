"""Published serve commands, and what each must mean."""

from __future__ import annotations

from typing import Any

PARSERS = (
    "--tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice "
    "--reasoning-parser deepseek_v4"
)
BASE = "--trust-remote-code --kv-cache-dtype fp8 --block-size 256"
PRO, FLASH = "deepseek-ai/DeepSeek-V4-Pro", "deepseek-ai/DeepSeek-V4-Flash"
E314 = (
    "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4"
)
E112 = E314.replace("steps 3", "steps 1").replace("tokens 4", "tokens 2")
SGLANG = "sglang serve --trust-remote-code --model-path"

# A published command, and what it must mean: model, pp, tp, ep, dp, method, k, cache, then runtime's
# max_model_len, max_num_seqs, max_num_batched_tokens, memory_fraction (None: builder's default).
RECIPES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "vllm pro h200 tep": (
        f"vllm serve {PRO} {BASE} --tensor-parallel-size 8 --enable-expert-parallel --max-model-len 200000 "
        "--gpu-memory-utilization 0.95 --max-num-seqs 16 --no-enable-flashinfer-autotune --compilation-config "
        f'\'{{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}\' {PARSERS}',
        ("v4_pro", 1, 8, 8, 1, "none", 0, "fp8", 200_000, 16, None, 0.95),
    ),
    "vllm pro b300 dep mtp": (
        f"vllm serve {PRO} {BASE} --data-parallel-size 8 --enable-expert-parallel "
        "--attention_config.use_fp4_indexer_cache=True --moe-backend deep_gemm_mega_moe --compilation-config "
        f'\'{{"cudagraph_mode":"FULL_AND_PIECEWISE", "custom_ops":["all"]}}\' {PARSERS} '
        '--speculative-config \'{"method":"mtp","num_speculative_tokens":2}\'',
        ("v4_pro", 1, 1, 8, 8, "mtp", 2, "fp8_fp4", 1_048_576, None, None, 0.92),
    ),
    "vllm pro mi355x": (
        f"VLLM_ROCM_USE_AITER=1 vllm serve {PRO} --host localhost --port 8001 --dtype auto --kv-cache-dtype fp8 "
        "--tensor-parallel-size 8 --max-num-seqs 512 --max-num-batched-tokens 8192 --distributed-executor-backend mp "
        f"--trust-remote-code --gpu-memory-utilization 0.9 {PARSERS} --compilation-config "
        '\'{"mode": 3, "cudagraph_mode": "FULL_DECODE_ONLY"}\'',
        ("v4_pro", 1, 8, 1, 1, "none", 0, "fp8", 1_048_576, 512, 8192, 0.9),
    ),
    "vllm flash decode h200": (
        f"vllm serve {FLASH} {BASE} --data-parallel-size 4 --enable-expert-parallel --max-model-len auto "
        "--no-disable-hybrid-kv-cache-manager --disable-uvicorn-access-log --port 8001 --max-num-seqs 512 "
        "--max-num-batched-tokens 512 --compilation-config "
        '\'{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY","max_cudagraph_capture_size":512}\'',
        ("v4_flash", 1, 1, 4, 4, "none", 0, "fp8", 1_048_576, 512, 512, 0.92),
    ),
    "vllm flash dgx station": (
        f"vllm serve {FLASH} --tensor-parallel-size 1 --pipeline-parallel-size 1 {BASE} "
        "--gpu-memory-utilization 0.92 --attention_config.use_fp4_indexer_cache True "
        f"{PARSERS} --max-cudagraph-capture-size 128 "
        '--speculative-config \'{"method":"mtp","num_speculative_tokens":3}\'',
        ("v4_flash", 1, 1, 1, 1, "mtp", 3, "fp8_fp4", 1_048_576, None, None, 0.92),
    ),
    "vllm flash 0731 rtx": (
        f"vllm serve {FLASH}-0731 {BASE} --enable-expert-parallel --tensor-parallel-size 8 --moe-backend auto "
        f"--attention_config.use_fp4_indexer_cache False {PARSERS} --speculative-config "
        '\'{"method":"dspark","num_speculative_tokens":7,"draft_sample_method":"probabilistic"}\'',
        ("v4_flash_0731", 1, 8, 8, 1, "dspark", 7, "fp8", 1_048_576, None, None, 0.92),
    ),
    "vllm flash mi325x": (
        f"VLLM_ROCM_USE_AITER=1 vllm serve {FLASH} --host 0.0.0.0 --port 8002 --tensor-parallel-size 1 "
        "--kv-cache-dtype fp8_e4m3 --max-model-len 4096 --enable-chunked-prefill --max-num-batched-tokens 256 "
        "--kv-cache-memory-bytes 10000000000 --distributed-executor-backend mp --trust-remote-code "
        "--tokenizer-mode deepseek_v4 --moe-backend triton_unfused --enforce-eager",
        ("v4_flash", 1, 1, 1, 1, "none", 0, "fp8", 4096, None, 256, 0.92),
    ),
    "inferencex pro h200": (
        f"vllm serve {PRO} --host 0.0.0.0 --port 8888 {BASE} --no-enable-prefix-caching --tensor-parallel-size 1 "
        "--data-parallel-size 8 --enable-expert-parallel --max-model-len 9472 --quantization deepseek_v4_fp8 "
        f"--gpu-memory-utilization 0.95 --max-num-seqs 512 --max-num-batched-tokens 512 {PARSERS}",
        ("v4_pro", 1, 1, 8, 8, "none", 0, "fp8", 9472, 512, 512, 0.95),
    ),
    "inferencex pro mi300x": (
        f"VLLM_ROCM_USE_AITER=1 VLLM_ROCM_USE_AITER_MOE=1 vllm serve {PRO} --port 8888 --tensor-parallel-size 8 "
        "--data-parallel-size 1 --quantization deepseek_v4_fp8 --async-scheduling --no-enable-prefix-caching "
        "--distributed-executor-backend mp --gpu-memory-utilization 0.9 --max-model-len 9472 --kv-cache-dtype fp8",
        ("v4_pro", 1, 8, 1, 1, "none", 0, "fp8", 9472, None, None, 0.9),
    ),
    "sglang pro h200": (
        f"{SGLANG} {PRO} --tp 8 --moe-runner-backend flashinfer_mxfp4 {E314} --mem-fraction-static 0.83 "
        "--host 0.0.0.0 --port 30000",
        ("v4_pro", 1, 8, 1, 1, "mtp", 3, "fp8", 1_048_576, 256, None, 0.83),
    ),
    "sglang pro b300 balanced": (
        f"{SGLANG} {PRO} --tp 8 --dp 8 --enable-dp-attention --moe-runner-backend flashinfer_mxfp4 "
        f"--disable-flashinfer-autotune --chunked-prefill-size 32768 --swa-full-tokens-ratio 0.1 {E112} "
        "--mem-fraction-static 0.92 --cuda-graph-max-bs-decode 256 --deepep-config "
        '\'{"normal_dispatch":{"num_sms":96},"normal_combine":{"num_sms":96}}\' --host 0.0.0.0 --port 30000',
        ("v4_pro", 1, 1, 8, 8, "mtp", 1, "fp8", 1_048_576, 32, 4096, 0.92),
    ),
    "sglang pro gb300 throughput": (
        f"SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK=8320 {SGLANG} {PRO} --tp 4 --dp 4 "
        "--enable-dp-attention --moe-a2a-backend megamoe --mem-fraction-static 0.9 --cuda-graph-max-bs-decode 128 "
        "--max-running-requests 256 --host 0.0.0.0 --port 30000",
        ("v4_pro", 1, 1, 4, 4, "none", 0, "fp8", 1_048_576, 64, None, 0.9),
    ),
    "sglang pro two h100 nodes": (
        f"SGLANG_SHARED_EXPERT_TP1=1 {SGLANG} {PRO} --tp 16 --moe-runner-backend marlin {E314} "
        "--mem-fraction-static 0.9 --cuda-graph-max-bs-decode 8 --max-running-requests 32",
        ("v4_pro", 1, 16, 1, 1, "mtp", 3, "fp8", 1_048_576, 32, None, 0.9),
    ),
    "sglang flash rtx": (
        f"{SGLANG} {FLASH} --tp 4 --moe-runner-backend marlin --mem-fraction-static 0.70 --cuda-graph-max-bs-decode 32",
        ("v4_flash", 1, 4, 1, 1, "none", 0, "fp8", 1_048_576, 256, None, 0.7),
    ),
    "sglang flash mi300x": (
        "SGLANG_USE_ROCM700A=0 SGLANG_HACK_FLASHMLA_BACKEND=unified_kv_triton AITER_BF16_FP8_MOE_BOUND=0 "
        f"{SGLANG} {FLASH} --tp 8 --attention-backend dsv4 --page-size 256 --mem-fraction-static 0.90 "
        "--swa-full-tokens-ratio 0.1 --disable-shared-experts-fusion --kv-cache-dtype fp8_e4m3 "
        f"--chunked-prefill-size 8192 {E314}",
        ("v4_flash", 1, 8, 1, 1, "mtp", 3, "fp8", 1_048_576, 256, 8192, 0.9),
    ),
    "atom plugin for sglang": (
        f"python -m sglang.launch_server --model-path {PRO} --tensor-parallel-size 8 --kv-cache-dtype fp8_e4m3 "
        "--mem-fraction-static 0.9 --swa-full-tokens-ratio 0.1 --max-running-requests 256 --page-size 256 "
        "--disable-radix-cache --disable-shared-experts-fusion --tool-call-parser deepseekv4",
        ("v4_pro", 1, 8, 1, 1, "none", 0, "fp8", 1_048_576, 256, None, 0.9),
    ),
}
