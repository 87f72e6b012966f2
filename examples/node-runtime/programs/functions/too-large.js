exports.invoke = () => ({ outputs: { x: 'x'.repeat(1100000) } });
