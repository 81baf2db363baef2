"""Interrupts and kills sweeps half way, as they are really run, and completes them: nothing finished is run again, nothing begun is lost."""
import json, os, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
TMP = Path(tempfile.mkdtemp(prefix="sweep-"))
SMALL = dict(preset="tiny", num_iterations=40, batch_tokens=512, train_seq_len=512, val_seq_len=512, val_tokens=512, val_loss_every=0, save_every=10,
             model_dim=32, num_heads=1, max_window=256, sample_tokens=0, dtype="float32", runs_dir=str(TMP))
CODE = """
from nanogpt_medium.config import get_config
from nanogpt_medium.sweep import sweep
runs = sweep(get_config(**{small}), dict(cooldown_frac=[0.25, 0.75]), seeds=[0, 1], name="{name}", at_once=2)
print("finished:", sum(r.state == "finished" for r in runs))
"""

def start(name, **small):
    "A process that sweeps two cooldowns with two seeds each."
    env = os.environ | dict(PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    return subprocess.Popen([sys.executable, "-c", CODE.format(name=name, small=SMALL | small)], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

def must(ok, what, *about):
    if not ok: sys.exit("\n".join(map(str, (what, *about))))

def ended(job, seconds=180):
    try: return job.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired: job.kill(); sys.exit(f"a sweep did not end within {seconds} s")

def wait_until(condition, what, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        must(time.monotonic() < end, f"not within {seconds} s: {what}")
        time.sleep(0.05)

def states(name): return {r["name"]: r["state"] for r in json.loads((TMP / name / "sweep.json").read_text())["runs"]} if (TMP / name / "sweep.json").exists() else {}
def trained(name): return {p.parent.name: [(r["step"], r["loss"]) for r in map(json.loads, p.read_text().splitlines()) if "loss" in r] for p in (TMP / name).glob("*/metrics.jsonl")}
def touched(name): return {p: p.stat().st_mtime_ns for run, state in states(name).items() if state == "finished" for p in (TMP / name / run).rglob("*")}
def at_work(name): return sum("step:" in p.read_text() for p in (TMP / name).glob("*/log.txt")) > list(states(name).values()).count("finished")

def stopped_and_completed(name, stop):
    "Stop a sweep with `stop` when one run is finished and another at work; the next call must complete it as if nothing had happened."
    job = start(name)
    wait_until(lambda: job.poll() is not None or "finished" in states(name).values() and at_work(name), f"a finished run and one at work in {name}")
    must(job.poll() is None, "the sweep was over before it could be stopped", job.poll())
    people = psutil.Process(job.pid).children(recursive=True)
    job.send_signal(stop); ended(job)
    wait_until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in people), f"the end of every process after {stop.name}", 60)
    before = states(name); kept = touched(name); checkpoints = len(list((TMP / name).glob("*/checkpoints/*.pt")))
    must(0 < list(before.values()).count("finished") < 4 and "failed" not in before.values(), f"after {stop.name}", before)
    out = ended(start(name)); must("finished: 4" in out, "the sweep was not completed", out)
    must({p: p.stat().st_mtime_ns for p in kept} == kept, "a finished run was touched again")
    must(trained(name) == trained("whole"), f"the runs differ from those of a sweep that was never stopped ({stop.name})")
    resumed = sum("resumed from" in p.read_text() for p in (TMP / name).glob("*/log.txt"))
    print(f"{stop.name}: {list(before.values()).count('finished')} of 4 runs were finished, {checkpoints} checkpoints kept; completed, {resumed} logs tell of resuming")

out = ended(start("whole")); must("finished: 4" in out, "the sweep failed", out)
must({run: [s for s, _ in steps] for run, steps in trained("whole").items()} == {f"cooldown_frac={f},seed={s}": [*range(40)] for f in (0.25, 0.75) for s in (0, 1)}, "steps are missing or double", trained("whole"))
stopped_and_completed("interrupted", signal.SIGINT)
stopped_and_completed("killed", signal.SIGKILL)
out = ended(start("whole", muon_lr=0.01)); must("another sweep's manifest" in out and "muon_lr" in out, "a manifest of other settings was not refused", out)
shutil.rmtree(TMP)
