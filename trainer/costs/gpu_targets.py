"""Descriptions of GPUs in XLA's format, to compile for them without a GPU."""

# An H100 SXM, as CUDA describes it on a machine that has one.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

# From XLA's own descriptions (openxla/xla, xla/backends/gpu/target_config/specs:
# a100_sxm_40.txtpb and a100_sxm_80.txtpb), which differ in the three placeholders.
_A100 = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 167936
  shared_memory_per_block_optin: 166912
  threads_per_core_limit: 2048
  core_count: 108
  fpus_per_core: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: 41943040
  clock_rate_ghz: 1.41
  device_memory_size: {memory}
  cuda_compute_capability {{ major: 8 }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{name}"
"""

# Keys are those of ``trainer.costs.accelerators.ACCELERATORS``.
TARGETS = {
    "a100-40gb": _A100.format(
        bandwidth=1_555_200_000_000, memory=42_331_013_120, name="NVIDIA A100-SXM4-40GB"
    ),
    "a100-80gb": _A100.format(
        bandwidth=2_039_040_000_000, memory=85_100_068_864, name="NVIDIA A100-SXM4-80GB"
    ),
    "h100": _H100,
}
