// The pages, in the order of the navigation. A page is a file here and a row: its path, its name and icon, its view.
import { Agents } from "./agents.js";
import { Approvals } from "./approvals.js";
import { Channels } from "./channels.js";
import { Chat } from "./chat/chat.js";
import { Config } from "./config.js";
import { Context } from "./context.js";
import { Debug } from "./debug.js";
import { Logs } from "./logs.js";
import { Messages } from "./messages.js";
import { Sessions } from "./sessions.js";
import { Transcript } from "./transcript.js";
import { Usage } from "./usage.js";

export const PAGES = [
  { path: "chat", name: "Chat", icon: "chat", view: Chat },
  { path: "sessions", name: "Sessions", icon: "sessions", view: Sessions },
  { path: "transcript", name: "Transcript", icon: "transcript", view: Transcript },
  { path: "context", name: "Context", icon: "context", view: Context },
  { path: "messages", name: "Messages", icon: "messages", view: Messages },
  { path: "agents", name: "Agents & cron", icon: "agents", view: Agents },
  { path: "channels", name: "Channels", icon: "channels", view: Channels },
  { path: "approvals", name: "Approvals", icon: "approvals", view: Approvals },
  { path: "usage", name: "Usage", icon: "usage", view: Usage },
  { path: "config", name: "Config", icon: "config", view: Config },
  { path: "logs", name: "Logs", icon: "logs", view: Logs },
  { path: "debug", name: "Debug", icon: "debug", view: Debug },
];
