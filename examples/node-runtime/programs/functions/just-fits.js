exports.invoke = () => ({ outputs: { x: 'x'.repeat(1000000) } });
