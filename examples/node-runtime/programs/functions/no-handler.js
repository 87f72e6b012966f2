exports.other = () => ({});
