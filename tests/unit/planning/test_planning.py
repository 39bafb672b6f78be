"""Planning against figures that are known, and by hand."""

from __future__ import annotations

import random

import pytest
from click.testing import CliRunner
from hasten.api.cli.main import main
from hasten.core.loading import load_model
from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.options import ConfigurationError, SchedulerOptions
from hasten.core.planning.deployment import Deployment, Setting
from hasten.core.planning.devices import GIB, find_device, parse_quantity
from hasten.core.planning.geometry import Geometry, geometry_of_config, read_geometry
from hasten.core.planning.options import PlanOptions
from hasten.core.planning.report import report
from hasten.core.planning.simulate import SimulatedRequest, simulate
from hasten.kernels.backend import KVPlan
from hasten.kernels.dtypes import DType
from hasten.kernels.program import KVGroupSpec

LLAMA_3_8B: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
OPT_13B: dict[str, object] = {
    "hidden_size": 5120,
    "ffn_dim": 20480,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
MIXTRAL: dict[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def geometry(values: dict[str, object]) -> Geometry:
    return geometry_of_config(Fields(values, "config.json"), "test")


def llama_with(**setting: int) -> Deployment:
    return Deployment(geometry(LLAMA_3_8B), Setting(**setting), None)  # type: ignore[arg-type]  # ints only


def test_sizes_of_known_models() -> None:
    llama, opt, mixtral = geometry(LLAMA_3_8B), geometry(OPT_13B), geometry(MIXTRAL)
    assert llama.num_params == 8_030_261_248
    assert opt.num_params == pytest.approx(12.85e9, rel=0.01)
    assert mixtral.num_params == pytest.approx(46.7e9, rel=0.001)
    assert mixtral.active_params == pytest.approx(12.8e9, rel=0.01)
    assert Deployment(llama, Setting(kv_bytes=1), None).kv_bytes_per_token == 131_072
    assert Deployment(opt, Setting(kv_bytes=1), None).kv_bytes_per_token == 819_200
    assert pytest.approx(1.6 * GIB, rel=0.03) == 2048 * 819_200


def test_a_pool_of_54_gib() -> None:
    plan = llama_with(kv_bytes=54 * GIB)
    assert (plan.block_bytes, plan.num_blocks, plan.kv_tokens) == (2 * 2**20, 27_648, 442_368)
    assert plan.max_concurrency == 54.0


def test_a_pool_of_60_gib() -> None:
    plan = llama_with(kv_bytes=60 * GIB)
    assert plan.num_blocks == 30_720
    assert plan.concurrency_at(350) == 1_396
    assert plan.concurrency_at(2_048) == 240
    assert plan.concurrency_at(2_000) == 245
    assert plan.concurrency_at(2_000, shared_prefix_len=1_500) == 957


def test_fp8_halves_the_cache_but_for_its_scales() -> None:
    llama = geometry(LLAMA_3_8B)
    ((_, bf16),), ((_, fp8),) = llama.kv_groups("bf16"), llama.kv_groups("fp8")
    assert fp8 / bf16 == pytest.approx((128 + 2) / 256)


def test_windows_make_groups_that_keep_only_their_window() -> None:
    values = LLAMA_3_8B | {
        "num_hidden_layers": 4,
        "sliding_window": 1024,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    }
    plan = Deployment(geometry(values), Setting(kv_bytes=GIB), None)
    per_layer = 2 * 8 * 128 * 2
    assert plan.geometry.kv_groups("bf16") == ((1024, 3 * per_layer), (None, per_layer))
    full = Deployment(geometry(LLAMA_3_8B | {"num_hidden_layers": 4}), Setting(kv_bytes=GIB), None)
    assert plan.max_concurrency > 2 * full.max_concurrency


def test_speed_is_the_roofline() -> None:
    device = find_device("h100-sxm")
    plan = Deployment(geometry(LLAMA_3_8B), Setting(mean_len=1024), device)
    one = plan.speed_at(1)
    read = plan.geometry.linear_params * 2 + 2 * 128256 * 4096 + 1024 * 131_072
    assert one.is_memory_bound
    assert one.step_s == pytest.approx(read / 3.35e12)
    assert not plan.speed_at(4096, 8).is_memory_bound
    best = plan.largest_batch(0.010)
    assert plan.speed_at(best).step_s <= 0.010 < plan.speed_at(best + 1).step_s
    pays = plan.speculation_pays_up_to()
    assert plan.speed_at(pays, 4).is_memory_bound
    assert pays == plan.concurrency_at(1024) or not plan.speed_at(pays + 1, 4).is_memory_bound


def test_tensor_parallel_sizes_hold_a_request() -> None:
    values = LLAMA_3_8B | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    }
    plan = Deployment(geometry(values), Setting(), find_device("h100-sxm"))
    assert plan.kv_pool_bytes < 0
    assert plan.tensor_parallel_sizes()[0] == 4
    assert report(plan, ("bf16",), None).speed == []


def test_the_embedded_model_in_int4_with_fp8_kv() -> None:
    embedded = read_geometry("embedded")
    assert embedded.weight_bytes("bf16") == pytest.approx(269e6, rel=0.01)
    setting = Setting("int4", quantize_lm_head=True, kv_dtype="fp8", kv_bytes=GIB)
    plan = Deployment(embedded, setting, None)
    assert plan.weight_share_of_bf16 <= 0.30
    assert plan.kv_share_of_bf16 <= 0.52


def test_what_is_planned_is_what_loading_makes() -> None:
    embedded = read_geometry("embedded")
    model = load_model("embedded", quantization="int4", quantize_lm_head=True)
    norms = 2 * (2 * embedded.num_layers + 1) * embedded.hidden_size  # in fp32: 2 bytes more
    assert embedded.weight_bytes("int4", lm_head=True) + norms == model.num_bytes


def test_a_head_of_its_own_is_quantised_without_the_embedding() -> None:
    llama = geometry(LLAMA_3_8B)
    table = 128256 * 4096
    saved = llama.weight_bytes("int4") - llama.weight_bytes("int4", lm_head=True)
    assert saved == pytest.approx(table * (16 - 4.5) / 8)
    per_step = llama.step_weight_bytes("int4", 1) - llama.step_weight_bytes("int4", 1, lm_head=True)
    assert per_step == pytest.approx(table * (16 - 4.5) / 8)
    with pytest.raises(ConfigurationError, match="--quantize-lm-head says nothing without"):
        PlanOptions(quantize_lm_head=True)


def test_the_command_shows_the_shares() -> None:
    arguments = ["plan", "embedded", "--kv-memory", "1GiB", "--quantization", "int4"]
    arguments += ["--quantize-lm-head", "--kv-cache-dtype", "fp8"]
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "28.1% of bf16" in done.output
    assert "51.6% of bf16" in done.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": "x"}, "num_hidden_layers"),
        ({"vocab_size": None}, "vocab_size"),
        ({"sliding_window": 4, "layer_types": ["full_attention"]}, "layer_types"),
        ({"sliding_window": 4, "layer_types": ["linear"] * 32}, "layer_types"),
        ({"intermediate_size": None}, "intermediate_size"),
    ],
)
def test_bad_configs_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        geometry(LLAMA_3_8B | change)


def test_settings_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--max-model-len 9000"):
        llama_with(kv_bytes=GIB, max_model_len=9000)
    with pytest.raises(ConfigurationError, match="--shared-prefix 500"):
        llama_with(kv_bytes=GIB, mean_len=400, shared_prefix_len=500)
    with pytest.raises(ConfigurationError, match="--gpu"):
        Deployment(geometry(LLAMA_3_8B), Setting(), None)
    with pytest.raises(ConfigurationError, match="did you mean h100-sxm"):
        find_device("h100sxm")


@pytest.mark.parametrize(
    ("text", "value"),
    [("54GiB", 54 * GIB), ("3.35TB/s", 3.35e12), ("989 TFLOPS", 989e12), ("1024", 1024)],
)
def test_quantities(text: str, value: float) -> None:
    assert parse_quantity("--memory", text) == pytest.approx(value)


def test_bad_quantities_are_named() -> None:
    with pytest.raises(ConfigurationError, match="--memory 'much'"):
        parse_quantity("--memory", "much")


def kv_plan(num_blocks: int) -> KVPlan:
    return KVPlan((KVGroupSpec(1, 1, 64, DType.BF16),), (num_blocks + 1,), 16)


def test_blocks_waste_little_where_reserving_wastes_most() -> None:
    lengths = random.Random(0).choices(range(50, 601), k=40)
    requests = [SimulatedRequest(length - 1, 1) for length in lengths]
    options = SchedulerOptions(max_num_batched_tokens=100_000)
    result = simulate(requests, kv_plan(40 * 128), options, 2048, lambda _: 1.0)
    assert result.peak_running == 40
    assert result.reserved_waste == pytest.approx(0.83, abs=0.03)
    assert result.block_waste == pytest.approx(0.02, abs=0.01)


def test_a_simulation_runs_every_request_to_its_end() -> None:
    requests = [SimulatedRequest(20 + i, 5 + i % 7, arrival_s=i * 0.5) for i in range(50)]
    result = simulate(requests, kv_plan(20), SchedulerOptions(max_num_seqs=8), 512, lambda _: 0.1)
    assert result.num_tokens_out == sum(5 + i % 7 for i in range(50))
    assert result.duration_s >= 24.5
    assert result.num_recomputed_tokens <= 0.1 * result.num_computed_tokens
    with pytest.raises(ConfigurationError, match="request 0"):
        simulate([SimulatedRequest(600, 1)], kv_plan(20), SchedulerOptions(), 512, lambda _: 1.0)
