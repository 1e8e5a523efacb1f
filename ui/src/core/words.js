// The page's one table of words. The English text is the key; the table gives its Spanish.
import { computed } from "./dom.js";
import { settings } from "./settings.js";

export const LANGUAGES = { en: "English", es: "Español" };

export const language = computed(() => {
  const chosen = settings.value.language;
  if (chosen in LANGUAGES) return chosen;
  return (navigator.language || "en").toLowerCase().startsWith("es") ? "es" : "en";
});

language.subscribe((value) => (document.documentElement.lang = value));

// t("{n} sessions", { n: 3 }). A text without a row is shown in English; a test finds those.
export function t(text, values) {
  const found = (language.value === "es" && SPANISH[text]) || text;
  return values ? found.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? "")) : found;
}

// One section for each page, in the order of the navigation. Keep a row on one line.
const SPANISH = {
  // The frame of the page
  "Pages": "Páginas",
  "Skip to content": "Ir al contenido",
  "Menu": "Menú",
  "Theme": "Tema",
  "System": "Sistema",
  "Light": "Claro",
  "Dark": "Oscuro",
  "Language": "Idioma",
  "Sign out": "Cerrar sesión",
  "Sign in": "Entrar",
  "Connected": "Conectado",
  "Connecting…": "Conectando…",
  "Reconnecting…": "Reconectando…",
  "Gateway token": "Token del Gateway",
  "Sign in to your Gateway": "Entra en tu Gateway",
  "The token stays in this browser tab. On the Gateway's machine `openclaw dashboard` opens this page signed in.": "El token no sale de esta pestaña. En la máquina del Gateway, `openclaw dashboard` abre esta página con la sesión iniciada.",
  "This browser waits for approval": "Este navegador espera aprobación",
  "Approve it on the Gateway's machine:": "Apruébalo en la máquina del Gateway:",
  "The Gateway refused this page": "El Gateway rechazó esta página",
  "Try again": "Reintentar",
  "There is no such page.": "No existe esa página.",
  "Close": "Cerrar",
  "Cancel": "Cancelar",
  "Save": "Guardar",
  "Delete": "Eliminar",
  "Refresh": "Actualizar",
  "Loading…": "Cargando…",
  "Search": "Buscar",
  "Copy": "Copiar",
  "Copied": "Copiado",
  "Show all": "Mostrar todo",
  "Session": "Sesión",
  "just now": "ahora",
  "{n} min ago": "hace {n} min",
  "{n} h ago": "hace {n} h",
  "{n} d ago": "hace {n} d",

  // Chat
  "Chat": "Chat",
  "Conversation": "Conversación",
  "Message": "Mensaje",
  "Send": "Enviar",
  "Stop": "Parar",
  "You": "Tú",
  "Agent": "Agente",
  "Edit": "Editar",
  "Reasoning": "Razonamiento",
  "Arguments": "Argumentos",
  "Output": "Salida",
  "running": "en curso",
  "done": "hecho",
  "failed": "falló",
  "Commands": "Comandos",
  "Newest": "Lo más reciente",
  "Waiting": "En espera",
  "Waiting messages": "Mensajes en espera",
  "Edit waiting message": "Editar mensaje en espera",
  "Drop waiting message": "Descartar mensaje en espera",
  "Sending…": "Enviando…",
  "Attach pictures": "Adjuntar imágenes",
  "Attached picture": "Imagen adjunta",
  "Show picture": "Mostrar imagen",
  "{n} pictures": "{n} imágenes",
  "Remove {name}": "Quitar {name}",
  "{name}: only pictures can be attached": "{name}: solo se pueden adjuntar imágenes",
  "{name} is no picture": "{name} no es una imagen",
  "At most {n} pictures go with a message": "Un mensaje lleva como máximo {n} imágenes",
  "This picture cannot be made small enough.": "Esta imagen no se puede reducir lo suficiente.",
  "The agent is working": "El agente está trabajando",
  "Condensing older messages…": "Resumiendo mensajes antiguos…",
  "Compaction: what is above was summarised for the model": "Compactación: lo anterior se resumió para el modelo",
  "Nothing said yet. Write a message below; / lists the commands.": "Aún no hay mensajes. Escribe abajo; / muestra los comandos.",
  "Deleted from the conversation; the transcript keeps it as a branch.": "Eliminado de la conversación; la transcripción lo conserva como rama.",
  "context {n} %": "contexto {n} %",
  "No session found.": "No se encontró ninguna sesión.",
  "New session: {name}": "Sesión nueva: {name}",
  "{n} sessions in all; search to find others.": "{n} sesiones en total; busca para encontrar otras.",
  // Sessions
  "Sessions": "Sesiones",
  // Transcript
  "Transcript": "Transcripción",
  // Context
  "Context": "Contexto",
  // Messages
  "Messages": "Mensajes",
  // Agents & cron
  "Agents & cron": "Agentes y cron",
  // Channels
  "Channels": "Canales",
  // Approvals
  "Approvals": "Aprobaciones",
  // Usage
  "Usage": "Uso",
  // Config
  "Config": "Configuración",
  // Logs
  "Logs": "Registros",
  // Debug
  "Debug": "Depuración",
};
