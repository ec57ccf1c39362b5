// Talks to a server that always calls a tool by the npm packages of Anthropic and OpenAI; prints JSON.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [url] = process.argv.slice(2);
const model = "tiny";
const asked = { role: "user", content: "Weather in Oslo?" };
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const found = {};

const api = new Anthropic({ baseURL: url, apiKey: "x", maxRetries: 0 });
const fields = { model, max_tokens: 60, temperature: 0, messages: [asked] };
fields.tools = [{ name: "get_weather", description: "Weather", input_schema: schema }];
const whole = await api.messages.create(fields);
const call = whole.content.find((block) => block.type === "tool_use");
found.message = [whole.stop_reason, call.name, call.input];
const stream = api.messages.stream(fields);
const events = [];
stream.on("streamEvent", (event) => events.push(event.type));
const final = await stream.finalMessage();
found.events = [events[0], events.at(-1), final.content.find((b) => b.type === "tool_use").input];
const result = { type: "tool_result", tool_use_id: call.id, content: "Rain." };
const turns = [asked, { role: "assistant", content: whole.content }, { role: "user", content: [result] }];
found.turn = (await api.messages.create({ ...fields, messages: turns })).role;
found.counted = (await api.messages.countTokens({ model, messages: [asked] })).input_tokens;
found.refused = await api.messages.create({ ...fields, model: "nope" }).catch((e) => [e.status, e.error.error.type]);

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "x", maxRetries: 0 });
const tools = [{ type: "function", function: { name: "get_weather", parameters: schema } }];
const chat = client.chat.completions.stream({ model, max_tokens: 60, temperature: 0, messages: [asked], tools });
const [choice] = (await chat.finalChatCompletion()).choices;
const { name, arguments: given } = choice.message.tool_calls[0].function;
found.chat = [choice.finish_reason, name, JSON.parse(given)];
const responses = client.responses.stream({ model, input: "Hi", max_output_tokens: 60, temperature: 0 });
const kinds = [];
for await (const event of responses) kinds.push(event.type);
found.response = [kinds[0], kinds.at(-1), (await responses.finalResponse()).status];
found.unknown = await client.chat.completions.create({ model: "nope", messages: [asked] }).catch((e) => e.status);

console.log(JSON.stringify(found));
