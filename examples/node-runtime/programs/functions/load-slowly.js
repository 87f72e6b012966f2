const fs = require('fs');
if (fs.existsSync(process.env.MARK)) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300000);
fs.writeFileSync(process.env.MARK, '');
exports.invoke = () => process.exit(3);
