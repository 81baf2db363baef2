"""Kills, stops, starves and confuses real training processes, and checks what is left: the same run, to the last bit, and no process.

Slow because it is real: every case starts processes that import torch. Run one case with: python .ci/check_faults.py NAME
"""
import hashlib, json, os, re, shutil, signal, socket, subprocess, sys, tempfile, time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
TMP = Path(tempfile.mkdtemp(prefix="faults-"))
STEPS = 24
SMALL = dict(preset="tiny", runs_dir=str(TMP / "runs"), num_iterations=STEPS, val_loss_every=12, val_tokens=1024, val_seq_len=256, batch_tokens=2048, train_seq_len=256, num_layers=6,
             model_dim=32, num_heads=1, max_window=256, save_every=5, dtype="float32", timeout_s=60, sample_tokens=0,
             scalar_lr=1e-6)    # at first the gradients of the scalars are rounding noise, of which Adam would make full steps: another order of adding, another run

# a fault for rank 1 of a job, put into its process before anything else is imported; FAULT says which
SITE = '''
import os, time
if os.environ.get("RANK") == "1" and os.environ.get("FAULT"):
    import nanogpt_medium, torch
    from nanogpt_medium.data import TokenLoader
    from nanogpt_medium.model import GPT
    batch, forward, count = TokenLoader.__next__, GPT.forward, [0]
    def bad_batch(self):
        count[0] += "train" in self.files[0]
        if count[0] == 8 and os.environ["FAULT"] == "shard": raise ValueError("train_000002.bin: 5 tokens make 1034 bytes, the file has 1000; it is truncated or damaged")
        if count[0] == 8 and os.environ["FAULT"] == "stuck": time.sleep(1000)
        return batch(self)
    def bad_loss(self, *args): return forward(self, *args) * (float("nan") if count[0] == 8 and os.environ["FAULT"] == "nan" else 1)
    TokenLoader.__next__, GPT.forward = bad_batch, bad_loss
'''
(TMP / "site").mkdir(); (TMP / "site" / "sitecustomize.py").write_text(SITE)

def environment(fault=""):
    paths = [str(TMP / "site"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | dict(PYTHONPATH=os.pathsep.join(paths), FAULT=fault, TORCH_ELASTIC_SHUTDOWN_TIMEOUT="8")

def start(*command, fault="", **kwargs):
    return subprocess.Popen([sys.executable, *map(str, command)], cwd=ROOT, env=environment(fault), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)

def launched(fault="", **settings):
    "A process that calls launch with SMALL and `settings`."
    code = f"from nanogpt_medium.config import get_config; from nanogpt_medium.trainer import launch, Stopped; import sys\ntry: print('result', launch(get_config(**{SMALL | settings!r})).val_loss)\nexcept Stopped as e: sys.exit(f'Stopped: {{e}}')"
    return start("-c", code, fault=fault)

def notebook(name, nproc, launcher=("-m", "papermill")):
    settings = [a for key, value in (SMALL | dict(run_name=name, nproc=nproc)).items() for a in ("-p", key, value)]
    return start(*launcher, "nbs/train.ipynb", TMP / f"{name}.ipynb", *settings)

def run_dir(name): return TMP / "runs" / name
def log(name): return (run_dir(name) / "log.txt").read_text() if (run_dir(name) / "log.txt").exists() else ""
def steps(name): return [re.sub("train_time.*", "", line) for line in log(name).splitlines() if line.startswith("step:")]
def losses(name): return [r["loss"] for r in map(json.loads, (run_dir(name) / "metrics.jsonl").read_text().splitlines()) if "loss" in r]
def digest(name):
    import torch
    from nanogpt_medium.checkpoint import checkpoints, load_checkpoint
    model = load_checkpoint(checkpoints(run_dir(name) / "checkpoints")[-1])["model"]
    return hashlib.sha256(b"".join(value.view(torch.uint8).numpy().tobytes() for value in model.values() if value.ndim)).hexdigest()

def must(ok, what, *about):
    if not ok: raise AssertionError("\n".join(map(str, (what, *about))))

def wait_until(condition, what, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition(): return
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")

def reached(name, step): wait_until(lambda: f"step:{step}/" in log(name), f"step {step} of {name}")
def family(process): return psutil.Process(process.pid).children(recursive=True)
def ranks(process): return sorted((p for p in family(process) if "nanogpt_medium.trainer" in p.cmdline() and "torch.distributed.run" not in p.cmdline()), key=lambda p: int(p.environ()["RANK"]))
def ended(process, seconds=90):
    try: return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired: process.kill(); raise AssertionError(f"did not end within {seconds} s") from None
def all_gone(processes): wait_until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes), "the end of every process", 45)
def same_as(name, other):
    must(steps(name) == steps(other) and losses(name) == losses(other), f"{name} and {other} differ", steps(name)[-3:], steps(other)[-3:], losses(name)[-3:], losses(other)[-3:])
    must(digest(name) == digest(other), f"{name} and {other} end with other parameters")
def resume(name, nproc=2): return ended(launched(run_name=name, nproc=nproc, resume=True))

def reference():
    out = ended(launched(run_name="two", nproc=2)); must("result" in out, "two ranks failed", out)

def world_sizes_agree():
    for w in (1, 4, 8): out = ended(launched(run_name=f"world{w}", nproc=w), 180); must("result" in out, f"{w} ranks failed", out)
    for w in (1, 4, 8):
        gap = max(abs(a - b) for a, b in zip(losses("two"), losses(f"world{w}"), strict=True)); print(f"    {w} and 2 ranks: losses differ by {gap:.1e} at most")
        early = max(abs(a - b) for a, b in zip(losses("two")[:5], losses(f"world{w}")))
        must(early < 1e-4 and gap < 1e-2, f"{w} ranks train something else", losses("two"), losses(f"world{w}"))    # Muon's bfloat16 makes any difference grow
    out = ended(launched(run_name="three", nproc=3)); must("take 1, 2, 4, 8" in out and not run_dir("three").exists(), "3 ranks were not refused", out)

def ranks_hold_the_same_bits():
    script = TMP / "bits.py"
    script.write_text(f"""
import os, json, hashlib, torch
from nanogpt_medium import trainer
from nanogpt_medium.config import get_config
digests, train_step = [], trainer.train_step
def and_note(run, now):
    train_step(run, now); digests.append(hashlib.sha256(b"".join(p.detach().view(torch.uint8).numpy().tobytes() for p in run.state.model.parameters() if p.ndim)).hexdigest())
trainer.train_step = and_note
trainer.train(get_config(**{SMALL | dict(run_name="bits")!r})); json.dump(digests, open(f"{TMP}/bits" + os.environ["RANK"], "w"))
""")
    out = ended(start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", script)); seen = [json.loads((TMP / f"bits{r}").read_text()) for r in range(4)]
    must(all(s == seen[0] for s in seen) and len(set(seen[0])) == STEPS, "ranks hold different parameters", out)

def rank_killed():
    job = launched(run_name="killed", nproc=2, max_restarts=1); reached("killed", 13); ranks(job)[1].kill(); out = ended(job)
    must("result" in out and "resumed from step 10 on 2 rank(s)" in log("killed"), "the run was not taken up again", out, log("killed")); same_as("killed", "two")

def stopped_by_signals():
    for number, name, code in ((signal.SIGTERM, "term", 1), (signal.SIGINT, "int", 1)):
        job = launched(run_name=name, nproc=2); reached(name, 7); people = family(job); job.send_signal(number); out = ended(job)
        must(job.returncode == code and f"stopped by {signal.Signals(number).name}" in out and "a checkpoint is saved; go on with run_name=" in out, f"{name}: not stopped as it should be", job.returncode, out)
        all_gone(people)
    resume("term"); same_as("term", "two")
    (TMP / "single.json").write_text(json.dumps(SMALL | dict(run_name="single")))
    job = start("-m", "nanogpt_medium.trainer", TMP / "single.json"); reached("single", 7); job.terminate(); out = ended(job)
    must(job.returncode == 143 and "stopped by SIGTERM at step" in out, "one process: SIGTERM", job.returncode, out); resume("single", 1); same_as("single", "world1")

def resumed_on_other_world_sizes():
    ended(launched(run_name="other", nproc=2, stop_at=7)); ended(launched(run_name="other", nproc=4, resume=True, stop_at=14)); out = ended(launched(run_name="other", nproc=1, resume=True, stop_at=0))
    gap = max(abs(a - b) for a, b in zip(losses("two"), losses("other"), strict=True)); print(f"    2, then 4, then 1 rank: losses differ by {gap:.1e} at most from those of 2 ranks")
    must(gap < 1e-2 and "on 4 rank(s)" in log("other") and "on 1 rank(s)" in log("other"), "resuming on another number of ranks changes the run", out)

def disk_full():
    code = f"import resource; from nanogpt_medium.config import get_config; from nanogpt_medium.trainer import train; c = get_config(**{SMALL | dict(run_name='full', resume=True)!r}); resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000)); print('result', train(c).val_loss)"
    job = launched(run_name="full", nproc=1); reached("full", 7); job.terminate(); ended(job); before = sorted((run_dir("full") / "checkpoints").iterdir())
    job = start("-c", code); out = ended(job)          # from here on no file can grow beyond 60 kB, which a checkpoint needs and the log does not
    must("result" in out and "could not be written" in log("full"), "a full disk ended the run", out, log("full")); must(sorted((run_dir("full") / "checkpoints").iterdir()) == before, "a full disk changed the checkpoints")
    must(steps("full") == steps("world1") and losses("full") == losses("world1"), "a full disk changed the run")

def one_rank_fails():
    began = time.monotonic(); out = ended(launched(fault="nan", run_name="nan", nproc=2))
    must("FloatingPointError" in out and "the training loss is nan at step 7" in out and "resumed" not in log("nan"), "nan on one rank", out, log("nan"))
    out = ended(launched(fault="shard", run_name="shard", nproc=2)); must("rank 1 failed" in out and "train_000002.bin" in out and "bad_batch" in out, "a bad shard on one rank", out)
    out = ended(launched(fault="stuck", run_name="stuck", nproc=2, timeout_s=8, max_restarts=0), 120); must("rank 0 failed" in out and re.search("timed? ?out", out, re.I), "a stuck rank", out)
    print(f"    nan, bad shard and stuck rank took {time.monotonic() - began:.0f} s together"); resume("stuck"); same_as("stuck", "two")

def notebook_killed():
    for name, whom, number in (("papermill-kill", "papermill", signal.SIGKILL), ("papermill-term", "papermill", signal.SIGTERM), ("kernel-kill", "kernel", signal.SIGKILL), ("kernel-term", "kernel", signal.SIGTERM)):
        job = notebook(name, 2); reached(name, 7); people = family(job)
        victim = psutil.Process(job.pid) if whom == "papermill" else next(p for p in people if "ipykernel_launcher" in " ".join(p.cmdline()))
        victim.send_signal(number); ended(job); all_gone(people)
        must("a checkpoint is saved" in log(name).splitlines()[-1], f"{name}: no checkpoint at the end", log(name)[-300:])
        print(f"    {name}: {log(name).splitlines()[-1].split(';')[0]}")
    resume("papermill-kill"); same_as("papermill-kill", "two")
    job = notebook("alone", 1); reached("alone", 7); people = family(job); job.kill(); ended(job); all_gone(people); print(f"    one process in a kernel, papermill killed: {log('alone').splitlines()[-1].split(';')[0]}")
    resume("alone", 1); same_as("alone", "world1")

def free_port():
    with socket.socket() as s: s.bind(("127.0.0.1", 0)); return s.getsockname()[1]

def two_machines():
    (TMP / "nodes.json").write_text(json.dumps(SMALL | dict(run_name="nodes"))); port = free_port()
    agents = [start("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=nodes", "--local-addr=127.0.0.1", "-m", "nanogpt_medium.trainer", TMP / "nodes.json") for _ in range(2)]
    out = [ended(a) for a in agents]; must(all(a.returncode == 0 for a in agents), "two agents did not form a job", *out); same_as("nodes", "two")

def notebook_on_every_rank():
    job = notebook("ranks", 0, ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "nanogpt_medium.notebook")); out = ended(job, 120)
    must(job.returncode == 0 and (TMP / "ranks.ipynb").exists(), "the notebook under torchrun failed", out[-3000:]); same_as("ranks", "two")
    job = notebook("ranks-term", 0, ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "nanogpt_medium.notebook")); reached("ranks-term", 7)
    people = family(job); job.terminate(); ended(job); all_gone(people); must("stopped by SIGINT" in log("ranks-term").splitlines()[-1], "SIGTERM of torchrun did not save", log("ranks-term")[-300:])

CASES = [reference, world_sizes_agree, ranks_hold_the_same_bits, rank_killed, stopped_by_signals, resumed_on_other_world_sizes, disk_full, one_rank_fails, notebook_killed, two_machines, notebook_on_every_rank]

if __name__ == "__main__":
    wanted, failed = sys.argv[1:], 0
    for case in CASES:
        if wanted and case.__name__ not in (*wanted, "reference", *(["world_sizes_agree"] if {"stopped_by_signals", "disk_full", "notebook_killed"} & set(wanted) else [])): continue
        began = time.monotonic()
        try: case(); print(f"{case.__name__}: ok, {time.monotonic() - began:.0f} s", flush=True)
        except AssertionError as e: failed += 1; print(f"{case.__name__}: FAILED\n{e}", flush=True)
    shutil.rmtree(TMP, ignore_errors=True)
    sys.exit(failed > 0)
