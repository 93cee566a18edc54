"""The machine under a server, read from a /proc of our own making."""

import os
import socket
import time
from pathlib import Path

import pytest

from headrace.diagnose.doctor import diagnose
from headrace.diagnose.evidence import Evidence, Flag, Reading, merged
from headrace.diagnose.finding import Finding, Label, Severity
from headrace.diagnose.readers import host

BOOTED_AT = 1_800_000_000.0
SERVER, ENGINE, NEIGHBOUR, DOCTOR = 100, 101, 200, 300
PORT = 8000


def make_proc(
    root: Path,
    cpu_s: dict[int, float],
    busy_s: float,
    waited_s: float,
    engine_state: str = "S",
    ran_s: float = 100.0,
) -> Path:
    """A server with an engine below it, a neighbour and the doctor itself; ticks are hundredths."""
    (root / "net").mkdir(parents=True, exist_ok=True)
    words = [f"cpu {busy_s * 100:.0f} 0 0 1000 50 0 0 0 0 0", f"btime {BOOTED_AT:.0f}"]
    (root / "stat").write_text("\n".join(words))
    table = "  sl  local_address rem_address   st\n"
    table += f"   0: 0100007F:{PORT:04X} 00000000:0000 0A 0:0 00:0 0 0 0 777 1 0\n"
    (root / "net" / "tcp").write_text(table)
    parents = {SERVER: 1, ENGINE: SERVER, NEIGHBOUR: 1, DOCTOR: 1}
    for pid, parent in parents.items():
        state = engine_state if pid == ENGINE else "S"
        fields = [state, parent, *[0] * 9, int(cpu_s.get(pid, 0.0) * 100), *[0] * 7, 5000, 0]
        folder = root / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        (folder / "fd").mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (a (very) odd\x1b name) {' '.join(map(str, fields))}")
        (folder / "task" / str(pid) / "schedstat").write_text(
            f"{ran_s * 1e9:.0f} {waited_s * 1e9 * (pid == ENGINE):.0f} 1"
        )
    if not (root / str(SERVER) / "fd" / "3").is_symlink():
        (root / str(SERVER) / "fd" / "3").symlink_to("socket:[777]")
    return root


def looked(proc: Path, now: float) -> host.Look:
    seen = host.look(SERVER, now, proc)
    assert seen is not None
    return seen


def passed(tmp_path: Path, *, neighbour: float, engine: float, waited: float, state: str = "S") -> Evidence:
    """Ten seconds on two cores."""
    before = looked(make_proc(tmp_path, {}, 1000.0, 5.0), 50.0)
    used = {NEIGHBOUR: 10 * neighbour, ENGINE: 10 * engine, DOCTOR: 1.0}
    busy_s = 1000.0 + sum(used.values())
    after = looked(make_proc(tmp_path, used, busy_s, 5.0 + 10 * waited, state), 60.0)
    return host.between(before, after, cores=2, looker=DOCTOR)


def at_work(evidence: Evidence) -> Evidence:
    readings = {
        "vllm:num_requests_running": Reading("vllm:num_requests_running", (2.0, 3.0, 2.0), "m"),
        "vllm:num_requests_waiting": Reading("vllm:num_requests_waiting", (0.0, 0.0, 0.0), "m"),
    }
    return evidence | Evidence(engine="vllm", readings=readings)


def first(evidence: Evidence) -> Finding:
    return diagnose(evidence).findings[0]


def test_the_server_is_found_by_its_port_and_its_start(tmp_path: Path) -> None:
    make_proc(tmp_path, {}, 0.0, 0.0)
    assert host.find_server(PORT, BOOTED_AT + 50.5, proc=tmp_path) == SERVER


@pytest.mark.parametrize(("port", "began_s"), [(PORT + 1, 50.0), (PORT, 500.0)])
def test_another_port_or_a_tunnel_that_listens_for_it_is_not_the_server(
    tmp_path: Path, port: int, began_s: float
) -> None:
    make_proc(tmp_path, {}, 0.0, 0.0)
    assert host.find_server(port, BOOTED_AT + began_s, proc=tmp_path) is None


@pytest.mark.parametrize(("told_s", "found"), [(42.4, SERVER), (44.0, None), (3.0, None)])
def test_after_a_step_of_the_clock_the_server_is_known_by_its_processor_time(
    tmp_path: Path, told_s: float, found: int | None
) -> None:
    """A virtual machine was restored under a server: the doctor saw neither its stopped engine nor the
    processes that took its cores.
    """
    make_proc(tmp_path, {SERVER: 42.0 if told_s > 5 else 3.0}, 0.0, 0.0)
    assert host.find_server(PORT, BOOTED_AT + 500.0, told_s, tmp_path) == found


def test_where_there_is_no_proc_nothing_is_said(tmp_path: Path) -> None:
    assert host.find_server(PORT, BOOTED_AT, proc=tmp_path) is None
    assert host.look(SERVER, 0.0, tmp_path) is None


def test_what_others_take_is_what_is_busy_and_neither_the_servers_nor_ours(tmp_path: Path) -> None:
    e = passed(tmp_path, neighbour=1.2, engine=0.6, waited=1.1)
    assert e.number("machine:cores_of_others") == pytest.approx(1.2)
    assert e.number("machine:cores_of_server") == pytest.approx(0.6)
    assert e.number("machine:threads_kept_waiting") == pytest.approx(1.1)
    assert "process 200, 1.2 cores" in e.text("machine:busiest_other")
    assert "\x1b" not in e.text("machine:busiest_other")


def test_processes_that_take_the_servers_cores_are_named_first(tmp_path: Path) -> None:
    found = first(at_work(passed(tmp_path, neighbour=1.2, engine=0.7, waited=1.1)))
    assert (found.label, found.severity) == (Label.CPU, Severity.WARNING)
    assert "1.2 of 2 cores" in found.claim


def test_a_queue_before_slots_that_are_all_taken_is_told_beside_them(tmp_path: Path) -> None:
    e = at_work(passed(tmp_path, neighbour=1.2, engine=0.7, waited=1.1))
    waiting = Reading("vllm:num_requests_waiting", (30.0, 40.0), "/metrics")
    running = Reading("vllm:num_requests_running", (4.0, 4.0), "/metrics")
    full = e | Evidence(
        readings={each.name: each for each in (waiting, running)}, flags={"max-num-seqs": Flag(4.0, "flags")}
    )
    assert [f.rule for f in diagnose(full).findings][:2] == ["crowded_out", "no_slot"]


def test_a_thread_that_only_looks_at_a_clock_is_not_starved_however_often_it_wakes(tmp_path: Path) -> None:
    before = looked(make_proc(tmp_path, {}, 1000.0, 60.0, ran_s=5.0), 50.0)
    after = looked(make_proc(tmp_path, {NEIGHBOUR: 18.0}, 1018.0, 64.0, ran_s=5.2), 60.0)
    waited = host.between(before, after, cores=2, looker=DOCTOR).number("machine:threads_kept_waiting")
    assert waited == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("neighbour", "engine", "waited"),
    [
        (0.2, 1.8, 1.0),  # the server's own threads are more than its cores
        (1.0, 0.3, 0.0),  # there is room for both
        (1.2, 0.7, 0.05),  # it got what it wanted all the same
    ],
)
def test_a_busy_machine_alone_is_no_finding(
    tmp_path: Path, neighbour: float, engine: float, waited: float
) -> None:
    said = diagnose(at_work(passed(tmp_path, neighbour=neighbour, engine=engine, waited=waited))).findings
    assert not [finding for finding in said if finding.label is Label.CPU]


def test_others_may_compute_beside_a_server_that_has_nothing_to_do(tmp_path: Path) -> None:
    said = diagnose(passed(tmp_path, neighbour=1.5, engine=0.4, waited=1.0)).findings
    assert not [finding for finding in said if finding.label is Label.CPU]


def test_a_stopped_process_is_named_and_is_all_there_is_to_say_of_a_standstill(tmp_path: Path) -> None:
    e = at_work(passed(tmp_path, neighbour=0.0, engine=0.0, waited=0.0, state="T"))
    steps = Reading("vllm:iteration_tokens_total_count", (7.0, 7.0, 7.0), "m")
    said = diagnose(e | Evidence(readings={steps.name: steps})).findings
    assert [finding.label for finding in said] == [Label.STALL]
    assert said[0].severity is Severity.CRITICAL
    assert f"process {ENGINE}" in said[0].claim


def test_who_was_let_go_on_is_not_stopped_any_more(tmp_path: Path) -> None:
    stopped = passed(tmp_path / "a", neighbour=0.0, engine=0.0, waited=0.0, state="T")
    going = passed(tmp_path / "b", neighbour=0.0, engine=1.0, waited=0.0)
    said = diagnose(at_work(merged([stopped, going]))).findings
    assert not [finding for finding in said if "stopped" in finding.claim]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux only")
def test_this_very_process_is_found_where_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        started_s = ticks / os.sysconf("SC_CLK_TCK")
        lines = Path("/proc/stat").read_text().splitlines()
        booted_at = next(float(line.split()[1]) for line in lines if line.startswith("btime"))
        assert host.find_server(port, booted_at + started_s) == os.getpid()
    before = host.look(os.getpid(), time.monotonic())
    while time.process_time() < 0.01:
        pass
    after = host.look(os.getpid(), time.monotonic())
    assert before is not None
    assert after is not None
    assert os.getpid() in after.ours
    assert (host.between(before, after, 2, looker=0).number("machine:cores_of_server") or 0.0) >= 0.0
