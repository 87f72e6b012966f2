// One worker: loads the handler, then answers one call after the other over the IPC channel, which no child of it has.
'use strict';

const [, , file, name, maximum] = process.argv;
const EXPECTED = 'expected an object {"outputs": {...}, "artifactRefs": [...]} with no other keys';

function failure(reason, error) {
  const message = error instanceof Error ? `${error.name}: ${error.message}` : String(error) || reason;
  return { error: { reason, message, details: { frames: String((error && error.stack) || message).slice(0, 8192) } } };
}

function load() {
  try {
    const handler = require(file)[name];
    if (typeof handler === 'function') process.on('message', async (body) => process.send(await invoke(handler, body)));
    return typeof handler === 'function' ? {} : failure('HandlerNotFound', `${file} exports no function ${name}`);
  } catch (error) {
    return failure('ImportFailed', error);
  }
}

async function invoke(handler, body) {
  let result;
  try {
    result = await handler(JSON.parse(body));
  } catch (error) {
    return failure('HandlerFailed', error);
  }
  try {
    const wrong = Object.keys(result).filter((key) => key !== 'outputs' && key !== 'artifactRefs');
    if (Array.isArray(result) || wrong.length) throw new Error(`got ${wrong}`);
    const text = JSON.stringify({ outputs: {}, ...result });
    const size = Buffer.byteLength(text);
    return size > maximum ? failure('ResponseTooLarge', `${size} bytes; at most ${maximum} are answered`) : { text };
  } catch (error) {
    return failure('HandlerResultInvalid', `${EXPECTED}: ${error}`);
  }
}

process.on('disconnect', () => process.exit(0)); // The server is gone.
process.send(load());
