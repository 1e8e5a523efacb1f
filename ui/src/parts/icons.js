// The icons of the page, all of one set (Lucide). Only those that are named here are in the build.
import {
  Archive, ArchiveRestore, ArrowLeft, ArrowUp, Bot, Brain, Bug, ChartColumn, Check, ChevronDown, ChevronLeft, ChevronRight, CircleAlert,
  CircleQuestionMark, Clock, Copy, Download, Ellipsis, Eye, File, FileText, Gauge, GitBranch, GitFork, Globe, Hash, Image, Inbox,
  Languages, LayoutGrid, Layers, ListTree, LogOut, Mail, Menu, MessageCircle, MessageSquare, MessagesSquare, Mic, Monitor, Moon,
  Paperclip, Pencil, Phone, Pin, PinOff, Plus, Printer, Radio, RefreshCw, ScrollText, Search, Send, Settings, ShieldCheck,
  Sparkles, Square, SquarePen, Sun, Terminal, Trash2, Upload, Users, Wrench, X, Zap,
} from "lucide";
import { h } from "../core/dom.js";

const ICONS = {
  archive: Archive, unarchive: ArchiveRestore, left: ArrowLeft, send: ArrowUp, agent: Bot, agents: Bot, brain: Brain, debug: Bug,
  usage: ChartColumn, check: Check, down: ChevronDown, previous: ChevronLeft, next: ChevronRight, alert: CircleAlert,
  why: CircleQuestionMark, clock: Clock, copy: Copy, download: Download, more: Ellipsis, eye: Eye, file: File, document: FileText,
  gauge: Gauge, branch: GitBranch, fork: GitFork, web: Globe, hash: Hash, image: Image, messages: Inbox, language: Languages,
  manage: LayoutGrid, context: Layers, transcript: ListTree, signout: LogOut, email: Mail, menu: Menu, chat: MessageCircle,
  sessions: MessagesSquare, message: MessageSquare, mic: Mic, monitor: Monitor, moon: Moon, attach: Paperclip, edit: Pencil, phone: Phone,
  pin: Pin, unpin: PinOff, plus: Plus, print: Printer, channels: Radio, again: RefreshCw, logs: ScrollText, search: Search, paper: Send,
  settings: Settings, approvals: ShieldCheck, sparkles: Sparkles, stop: Square, compose: SquarePen, sun: Sun, terminal: Terminal,
  trash: Trash2, upload: Upload, users: Users, tool: Wrench, close: X, now: Zap,
};

export function Icon({ name }) {
  const nodes = (ICONS[name] || ICONS.file).map(([tag, attributes]) => h(tag, attributes));
  return h("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, nodes);
}

// The channel of a conversation by its sign. Chats that began on a page need none.
const CHANNEL_ICONS = {
  telegram: "paper", whatsapp: "phone", signal: "message", discord: "hash", slack: "hash", irc: "hash", matrix: "hash", mattermost: "hash",
  email: "email", imessage: "message", googlechat: "message", msteams: "users", line: "message", cron: "clock", subagent: "agent", hook: "now",
};

export function channelIcon(channel) {
  return CHANNEL_ICONS[channel] || "channels";
}
