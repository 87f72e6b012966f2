exports.invoke = (request) => ({ outputs: { request } });
