// Questions as JSON on standard input, answers on standard output. NaN and infinities are words, which JSON has none for.
const source = [];
for await (const part of process.stdin) source.push(part);
const { script, questions } = JSON.parse(Buffer.concat(source).toString());
const exported = new Function(`${script}; return exported;`)();
process.stdout.write(JSON.stringify(exported.answers(questions), (_, v) => (typeof v === "number" && !Number.isFinite(v) ? String(v) : v)));
