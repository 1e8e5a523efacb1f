import{a as u}from"./chunk-5ENP5ZVT.js";import{h as c}from"./chunk-3JIDODKK.js";import{i as p,j as r,q as a,r as d,t as m,u as s}from"./chunk-M2XPJY4L.js";var n=p([]);async function $(){try{n.value=(await s("exec.approval.list")).approvals}catch{}}d.subscribe(({phase:o})=>o==="open"&&$());m.on((o,e)=>{o==="exec.approval.requested"?n.value=[...n.value.filter(t=>t.id!==e.id),e]:o==="exec.approval.resolved"&&(n.value=n.value.filter(t=>t.id!==e.id))});setInterval(()=>{let o=Date.now(),e=n.value.filter(t=>t.expiresAtMs>o);e.length!==n.value.length&&(n.value=e)},1e3);async function w(o,e){let t=await s("exec.approval.resolve",{id:o,decision:e});return n.value=n.value.filter(i=>i.id!==o),t}function O({approval:o}){let{request:e}=o,t=i=>async()=>{try{let{allowedOnce:l}=await w(o.id,i);l&&c(a("Allowed once: {why}",{why:l}))}catch(l){c(l)}};return r`<section class="question card" role="alertdialog" aria-label=${a("May this command run?")}>
    <h2>${a("May this command run?")}</h2>
    <pre class="wrap" tabindex="0" aria-label=${a("Command")}>${e.command}</pre>
    ${e.cwd&&r`<p class="hint">${a("In {folder}",{folder:e.cwd})}</p>`}
    ${e.env&&r`<pre class="wrap" tabindex="0" aria-label=${a("Variables")}>${Object.entries(e.env).map(([i,l])=>`${i}=${l}`).join(`
`)}</pre>`}
    ${e.onceOnly&&r`<p class="hint">${a("It cannot be allowed for good: {why}",{why:e.onceOnly})}</p>`}
    <div class="buttons">
      <button class="primary" onClick=${t("allow-once")}>${a("Allow once")}</button>
      ${!e.onceOnly&&r`<button onClick=${t("allow-always")}>${a("Always allow")}</button>`}
      <button class="danger" onClick=${t("deny")}>${a("Deny")}</button>
      <small>${a("until {time}",{time:u(o.expiresAtMs)})} ${e.sessionKey?`\xB7 ${e.sessionKey}`:""}</small>
    </div>
  </section>`}export{n as a,O as b};
