import{a as $,b as k}from"./chunk-KLYOLLAE.js";import{a as w}from"./chunk-6CVG2CEQ.js";import{c as f}from"./chunk-5ENP5ZVT.js";import{c as y,d as m,e as I,h as n,j as u,k as v}from"./chunk-3JIDODKK.js";import{c,d as g,j as t,q as a,t as b,u as d}from"./chunk-M2XPJY4L.js";import"./chunk-DCANE7XH.js";function J(){return t`<div class="page">
    <${I} title=${a("Approvals")} />
    ${$.value.length?$.value.map(s=>t`<${k} key=${s.id} approval=${s} />`):t`<${m}>${a("No command waits for an answer.")}<//>`}
    <${N} />
    <${R} />
  </div>`}function N(){let s=u("device.pair.list");g(()=>b.on(e=>e.startsWith("device.pair.")&&s.reload()),[]);let{data:r}=s,o=(e,i,l)=>()=>d(e,i).then(()=>(n(l),s.reload()),n);return t`<section class="card"><h2>${a("Devices")}</h2>
    ${r?t`<ul class="plain-list">
      ${r.pending.map(e=>t`<li key=${e.requestId}><span><strong>${e.displayName||e.clientId}</strong> <span class="chip warn">${a("asks to be let in")}</span><br /><small>${e.platform||""} · ${e.remoteIp||""} · ${f(e.ts)}</small></span>
        <span class="buttons"><button class="primary" onClick=${o("device.pair.approve",{requestId:e.requestId},a("Approved"))}>${a("Approve")}</button>
        <button class="danger" onClick=${o("device.pair.reject",{requestId:e.requestId},a("Rejected"))}>${a("Reject")}</button></span></li>`)}
      ${r.paired.map(e=>t`<li key=${e.deviceId}><span><strong>${e.displayName||e.clientId||a("Device")}</strong><br /><small>${e.platform||""} · ${(e.scopes||[]).join(", ")} · ${f(e.approvedAtMs)}</small></span>
        <${w} danger onSure=${o("device.pair.remove",{deviceId:e.deviceId},a("Removed"))}>${a("Remove")}<//></li>`)}
    </ul>${!r.pending.length&&!r.paired.length&&t`<${m}>${a("No device is paired.")}<//>`}`:v(s)}
  </section>`}function R(){let s=u("exec.approvals.get"),[r,o]=c(null),[e,i]=c(""),{data:l}=s,h=r??(l?JSON.stringify(l.file??{},null,2):""),x=async()=>{try{i(""),await d("exec.approvals.set",{file:JSON.parse(h),...l.hash?{baseHash:l.hash}:{}}),o(null),s.reload(),n(a("Saved"))}catch(p){i(p.message)}};return t`<details class="card"><summary><h2>${a("Rules for commands")}</h2></summary>
    ${l?t`
      <p class="hint">${l.path}</p>${e&&t`<${y} kind="error">${e}<//>`}
      <textarea class="code" rows="14" spellcheck="false" aria-label=${a("Rules for commands")} value=${h} onInput=${p=>o(p.target.value)}></textarea>
      <div class="buttons"><button class="primary" disabled=${r===null} onClick=${x}>${a("Save")}</button>
        ${r!==null&&t`<button onClick=${()=>o(null)}>${a("Cancel")}</button>`}</div>`:v(s)}
  </details>`}export{J as Approvals};
