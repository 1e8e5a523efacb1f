// Pictures that go with a message. A large one is made smaller here, because a frame to the Gateway has 512 KiB.
import { told } from "../../parts/basics.js";
import { t } from "../../core/words.js";

const MOST_PICTURES = 4;
const MOST_BYTES = 90_000;
const LONGEST_SIDE = 1568;

function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).split(",")[1]);
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

export async function readPictures(files, already) {
  const made = [];
  for (const file of files) {
    if (!file.type.startsWith("image/")) {
      told(new Error(t("{name}: only pictures can be attached", { name: file.name })));
      continue;
    }
    if (already + made.length >= MOST_PICTURES) {
      told(new Error(t("At most {n} pictures go with a message", { n: MOST_PICTURES })));
      break;
    }
    try {
      const fits = file.size <= MOST_BYTES && /^image\/(png|jpeg|gif|webp)$/.test(file.type);
      const blob = fits ? file : await smaller(file);
      const content = await base64(blob);
      made.push({ name: file.name || "picture", type: blob.type, content, url: `data:${blob.type};base64,${content}` });
    } catch (error) {
      told(error instanceof Error && error.message ? error : new Error(t("{name} is no picture", { name: file.name })));
    }
  }
  return made;
}
