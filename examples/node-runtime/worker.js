// One worker: loads the handler, then answers one call after the other over a channel that no child of it has.
import { pathToFileURL } from 'node:url';

const [, , file, name] = process.argv;
const [ANSWER_MAX, MESSAGE_MAX, FRAMES_MAX] = [1048576, 4096, 8];

const isMap = (value) => Object(value) === value && !Array.isArray(value);

function need(good, message) {
  if (!good) throw new Error(message);
}

// Each step is given what the one before has returned; one that throws is the reason why there is no value.
async function run(steps, value) {
  for (const [reason, step] of Object.entries(steps)) {
    try {
      value = await step(value);
    } catch (error) {
      const [type, stack] = [String(error?.name), String(error?.stack).split('\n')];
      const details = { type, frames: stack.slice(0, FRAMES_MAX + 1).join('\n') };
      return { error: { reason, message: `${reason}: ${error}`.slice(0, MESSAGE_MAX), details } };
    }
  }
  return { value };
}

process.on('disconnect', () => process.exit()); // The server is gone.

const loaded = await run({
  ImportFailed: () => import(pathToFileURL(file)),
  HandlerNotFound(module) {
    const handler = module[name] ?? module.default?.[name];
    need(typeof handler === 'function', `${file} exports no function ${name}`);
    return handler;
  },
});

const call = { // C15, C16, C18
  InvalidRequest: (body) => JSON.parse(body, (key, value) => {
    need(value !== Infinity && value !== -Infinity, 'a number is out of range');
    need(key.isWellFormed() && (value?.isWellFormed?.() ?? true), 'half of a surrogate pair');
    return value;
  }),
  HandlerFailed: loaded.value,
  HandlerResultInvalid(result) {
    const { outputs = {}, artifactRefs = [], ...others } = Object(result);
    const fits = isMap(result) && isMap(outputs) && Array.isArray(artifactRefs) && !Object.keys(others).length;
    need(fits, 'expected {"outputs": {...}, "artifactRefs": [...]} and no other key');
    return JSON.stringify({ ...result, outputs });
  },
  ResponseTooLarge(answer) {
    need(Buffer.byteLength(answer) <= ANSWER_MAX, `at most ${ANSWER_MAX} bytes are answered`);
    return answer;
  },
};

process.on('message', async (body) => process.send(await run(call, body)));
process.send({ error: loaded.error });
