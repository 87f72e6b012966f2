// A registered function: its workers, its calls, its release. Numbers in comments are lines of the contract.
import { fork } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import fs from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const { KRUNTIMES_WORK_DIR: WORK, PATH } = process.env;
const [HOMES, LOGS] = [path.join(WORK, 'homes'), path.join(WORK, 'logs')];
const [LINE_MAX, LOG_MAX, WORKER_WAIT_MS, LOOK_MS, FAILURES_MAX] = [16384, 1048576, 2000, 5, 3];
const RETRY = { TooManyInvocations: 1000, WorkerStarting: 1000 }; // milliseconds
const CLOSED = { reason: 'FailedPrecondition', message: 'the function is closed' };
const RELEASED = { reason: 'OutcomeUnknown', message: 'the function was released during the call' };
const LATE = { reason: 'InvocationTimeout', message: 'the deadline passed; every process of the call is gone' };

export const held = new Set();

export function fail({ reason, message, details = {} }) {
  const head = { reason, message, details, retryAfterMs: RETRY[reason] ?? null };
  throw Object.assign(new Error(message), { head });
}

export function need(good, reason, message) {
  if (!good) fail({ reason, message });
}

export async function until(done, end = Infinity) {
  while (!done() && Date.now() < end) await sleep(LOOK_MS);
}

const remove = (folder) => fs.rmSync(folder, { recursive: true, force: true });

// Kills the worker's group, and what left it but was started with its mark; whether there was any such process.
function kill({ child = {}, mark }) {
  const marked = fs.readdirSync('/proc').filter((pid) => {
    try { return fs.readFileSync(`/proc/${pid}/environ`).includes(mark); } catch { return false; }
  });
  for (const pid of [-child.pid, ...marked]) {
    try { process.kill(pid, 'SIGKILL'); } catch { /* It has ended. */ }
  }
  return marked.length > 0;
}

function end(worker, error) {
  worker.error ??= error;
  kill(worker);
}

export class Registration {
  constructor(request) {
    const { epoch, directory, handler, idleTimeoutMs, concurrency = 1 } = request;
    const [, file, name] = /(.+)\.(.+)/.exec(handler);
    const source = path.join(directory, `${file.replaceAll('.', '/')}.js`);
    need(fs.existsSync(source), 'SourceInvalid', `there is no ${source}`);
    Object.assign(this, { request, epoch, source, name, idleTimeoutMs, concurrency, id: randomUUID() });
    Object.assign(this, { state: 'loading', workers: new Set(), failures: 0, inFlight: 0, idleSince: Date.now() });
    this.home = path.join(HOMES, this.id);
    fs.mkdirSync(path.join(this.home, 'tmp'), { recursive: true, mode: 0o700 });
    held.add(this);
    this.work();
  }

  get open() { return this.state === 'loading' || this.state === 'ready'; }
  get idleForMs() { return this.inFlight ? 0 : Date.now() - this.idleSince; }

  fork() { // Output goes to files: at the end of a call all of it is there, whoever still writes (C22).
    const folder = fs.mkdtempSync(path.join(this.home, '.worker-'));
    const files = ['stdout', 'stderr'].map((name) => fs.openSync(path.join(folder, name), 'a+'));
    const artifacts = path.join(folder, 'artifacts');
    const env = { // C14
      PATH, HOME: this.home, TMPDIR: path.join(this.home, 'tmp'), LANG: 'C.UTF-8',
      KRUNTIME_RUN_UID: this.epoch.runUid, KRUNTIME_ATTEMPT: this.epoch.attempt,
      KRUNTIME_ARTIFACTS_DIR: artifacts, ...this.request.env, KRUNTIME_WORKER: folder,
    };
    const stdio = ['ignore', ...files, 'ipc'];
    const options = { cwd: this.request.directory, detached: true, stdio, env };
    const child = fork(path.join(import.meta.dirname, 'worker.js'), [this.source, this.name], options);
    return { child, folder, artifacts, files, mark: `KRUNTIME_WORKER=${folder}` };
  }

  async work() { // The life of one worker: it loads, is there for calls, ends and is replaced.
    const worker = this.fork();
    this.workers.add(worker);
    worker.hear = ({ error }) => {
      if (error) return end(worker, error);
      this.log(worker);
      if (this.state === 'loading') Object.assign(this, { state: 'ready', idleSince: Date.now() });
      this.failures = 0;
      worker.loaded = true;
    };
    worker.child.on('message', (said) => worker.error || worker.hear(Object(said)));
    const [code, signal] = await once(worker.child, 'exit').catch((error) => [error]);
    const reason = worker.loaded ? 'WorkerCrashed' : 'ImportFailed';
    worker.error ??= { reason, message: `the worker ended with ${signal ?? `exit code ${code}`}` };
    while (kill(worker)) await sleep(LOOK_MS); // C20
    worker.hear(worker);
    await until(() => !worker.busy);
    this.log(worker);
    worker.files.forEach((fd) => fs.closeSync(fd));
    remove(worker.folder);
    this.workers.delete(worker);
    if (!worker.loaded) this.failures++;
    if (this.state === 'loading') this.close(worker.error); // C12
    if (this.open && this.failures === FAILURES_MAX) Object.assign(this, { state: 'lost', error: worker.error });
    if (this.open && !this.workers.size) this.work(); // C21
    this.release();
  }

  async invoke(invocation, body, deadline) { // C17, C19, C21
    need(this.state === 'ready', 'FailedPrecondition', `the function is ${this.state}`);
    need(this.inFlight < this.concurrency, 'TooManyInvocations', `${this.inFlight} are in flight`);
    this.inFlight++;
    try {
      const free = () => [...this.workers].find(({ loaded, busy, error }) => loaded && !busy && !error);
      if (!free() && this.workers.size < this.concurrency) this.work();
      await until(() => free() || !this.open, Math.min(deadline, Date.now() + WORKER_WAIT_MS));
      need(this.open, 'FailedPrecondition', `the function is ${this.state}; the call did not run`);
      need(free(), 'WorkerStarting', 'no worker is ready; the call did not run');
      return await this.call(free(), invocation, body, deadline);
    } finally {
      this.inFlight--;
      this.idleSince = Date.now();
    }
  }

  async call(worker, invocation, body, deadline) {
    remove(worker.artifacts);
    fs.mkdirSync(worker.artifacts);
    worker.busy = true;
    const late = setTimeout(end, deadline - Date.now(), worker, LATE);
    const { error, value } = await new Promise((resolve) => {
      worker.hear = resolve;
      worker.child.send(body, () => {}); // When that fails the worker has ended, which is heard.
    });
    clearTimeout(late);
    worker.busy = false;
    if (!this.open) end(worker, CLOSED);
    this.log(worker, invocation);
    if (error) fail(error);
    return [{ artifacts: this.keep(worker) }, Buffer.from(value)];
  }

  keep({ artifacts }) { // C33
    if (!fs.readdirSync(artifacts).length) return '';
    const [folder, name] = [path.join(this.request.directory, '../artifacts'), String(process.hrtime.bigint())];
    fs.mkdirSync(folder, { recursive: true });
    fs.renameSync(artifacts, path.join(folder, name));
    return name;
  }

  log({ files }, invocation = '') { // C23
    const { runUid, attempt } = this.epoch;
    for (const [index, fd] of files.entries()) {
      const [name, { size }] = [['stdout', 'stderr'][index], fs.fstatSync(fd)];
      if (!size) continue;
      const data = Buffer.alloc(Math.min(size, LOG_MAX));
      fs.readSync(fd, data, 0, data.length, 0);
      fs.ftruncateSync(fd);
      const texts = String(data).replace(/\n$/, '').split('\n');
      const lines = texts.map((text) => [name, text, text.length > LINE_MAX]);
      if (size > LOG_MAX) lines.push(['system', `[cut: ${name} was ${size} bytes]`, true]);
      const entries = lines.map(([stream, text, cut]) => JSON.stringify({
        time: new Date(), stream, invocation, attempt, line: text.slice(0, LINE_MAX), cut,
      }));
      fs.appendFileSync(path.join(LOGS, `${runUid}.ndjson`), `${entries.join('\n')}\n`);
    }
  }

  close(error = CLOSED, drainMs = undefined) { // C24
    if (this.open) this.error = error;
    this.state = 'closing';
    if (drainMs != null) setTimeout(() => this.workers.forEach((worker) => end(worker, RELEASED)), drainMs);
    for (const worker of this.workers) if (!worker.busy) end(worker, error);
    this.release();
  }

  release() {
    if (this.state !== 'closing' || this.workers.size) return;
    remove(this.home);
    held.delete(this);
  }
}

kill({ mark: `KRUNTIME_WORKER=${HOMES}` }); // What an earlier start left (C9).
remove(HOMES);
fs.mkdirSync(LOGS, { recursive: true });
