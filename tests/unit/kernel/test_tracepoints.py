from pathlib import Path

from kcover_ebpf.kernel import tracepoints

KERNEL = b"\x9f\xeb\x01\0\0void\0btf_trace_console\0task_struct\0btf_trace_mc_event\0"


def _folder(at: Path, **modules: bytes) -> Path:
    at.joinpath("vmlinux").write_bytes(KERNEL)
    for name, content in modules.items():
        at.joinpath(name).write_bytes(content)
    return at


def test_absent__a_tracepoint_is_absent_where_neither_the_kernel_nor_a_module_has_it(
    tmp_path: Path,
) -> None:
    folder = _folder(tmp_path, mlx5=b"\0btf_trace_mlx5_event\0mlx5_core\0")
    asked = {"console", "mc_event", "mlx5_event", "mce_record", "console_write", "task_struct"}
    assert tracepoints.absent(asked, folder) == {"mce_record", "console_write", "task_struct"}


def test_absent__a_module_that_comes_brings_its_tracepoints(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    assert tracepoints.absent({"mlx5_event"}, folder) == {"mlx5_event"}
    folder.joinpath("mlx5").write_bytes(b"btf_trace_mlx5_event\0")
    assert not tracepoints.absent({"mlx5_event"}, folder)


def test_absent__nothing_is_called_absent_where_types_cannot_be_read(tmp_path: Path) -> None:
    assert not tracepoints.absent({"console"}, tmp_path / "nowhere")
