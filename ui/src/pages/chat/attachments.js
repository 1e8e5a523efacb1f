// Files that go with a message. A large picture is made smaller here; other files go as they are.
import { connection } from "../../core/gateway.js";
import { bytes } from "../../core/format.js";
import { t } from "../../core/words.js";
import { told } from "../../parts/basics.js";

const MOST_FILES = 8;
const MOST_BYTES = 90_000;
const LONGEST_SIDE = 1568;

function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).split(",")[1] || "");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

async function smaller(file) {
  const picture = await createImageBitmap(file);
  let side = Math.min(LONGEST_SIDE, Math.max(picture.width, picture.height));
  for (let attempt = 0; attempt < 6; attempt += 1) {
    const scale = side / Math.max(picture.width, picture.height);
    const canvas = new OffscreenCanvas(Math.max(1, Math.round(picture.width * scale)), Math.max(1, Math.round(picture.height * scale)));
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#fff"; // JPEG has no transparency.
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
    const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.85 });
    if (blob.size <= MOST_BYTES) return blob;
    side *= 0.7;
  }
  throw new Error(t("This picture cannot be made small enough."));
}

// What one frame to the Gateway holds beside these files, in bytes of base64.
function roomLeft(already) {
  const limit = connection.value.hello?.policy.maxPayload ?? 524_288;
  return limit - 24_000 - already.reduce((sum, one) => sum + one.content.length, 0);
}

export async function readFiles(files, already) {
  const made = [];
  for (const file of files) {
    const all = [...already, ...made];
    if (all.length >= MOST_FILES) {
      told(new Error(t("At most {n} files go with a message", { n: MOST_FILES })));
      break;
    }
    try {
      const picture = file.type.startsWith("image/") && !file.type.includes("svg");
      const fits = file.size <= MOST_BYTES && /^image\/(png|jpeg|gif|webp)$/.test(file.type);
      const blob = !picture || fits ? file : await smaller(file);
      const room = roomLeft(all);
      if (blob.size * 4 / 3 > room) throw new Error(t("{name} is too large: {size} are left for this message", { name: file.name, size: bytes(Math.max(0, Math.floor(room * 0.75))) }));
      if (!blob.size) throw new Error(t("{name} is empty", { name: file.name }));
      const content = await base64(blob);
      const type = blob.type || "application/octet-stream";
      made.push({ name: file.name || "picture", type, size: blob.size, content, ...(picture ? { url: `data:${type};base64,${content}` } : {}) });
    } catch (error) {
      told(error instanceof Error && error.message ? error : new Error(t("{name} cannot be read", { name: file.name })));
    }
  }
  return made;
}
