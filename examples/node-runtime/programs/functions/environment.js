exports.invoke = () => ({ outputs: { ...process.env, CWD: process.cwd() } });
