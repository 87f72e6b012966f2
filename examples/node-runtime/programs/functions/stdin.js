const fs = require('fs');
exports.invoke = () => ({ outputs: { stdin: fs.readFileSync(0, 'utf8') } });
