import{a as A}from"./chunk-MP3RPRGM.js";import{a as T}from"./chunk-PWJUQJCF.js";import"./chunk-UWT6M56K.js";import{b as h,e as k,j as c}from"./chunk-5ENP5ZVT.js";import{a as r,b as $,c as p}from"./chunk-Z5JSN5I3.js";import{d as b,e as g,g as v,j as d,k as u}from"./chunk-3JIDODKK.js";import{c as m,d as y,j as l,q as s,t as f}from"./chunk-M2XPJY4L.js";import"./chunk-DCANE7XH.js";var w=["accepted","queued","running","answered","silent","failed","superseded","expired"],q={answered:"good",silent:"good",failed:"bad",expired:"bad",running:"warn",queued:"warn",accepted:"warn",held:"warn"};function P(){let{query:t}=r.value,e=n=>p("messages",{...t,...n},{replace:!0}),a={limit:100};t.session&&(a.sessionKey=t.session),t.state&&(a.state=t.state);let i=d("messages.list",a);y(()=>{let n=0,x=f.on((C,S)=>{C!=="chat"||S.state==="delta"||(clearTimeout(n),n=setTimeout(i.reload,300))});return()=>(x(),clearTimeout(n))},[]);let o=i.data?.messages;return l`<div class="page">
    <${g} title=${s("Messages")}><button onClick=${i.reload}>${s("Refresh")}</button><//>
    <div class="filters">
      <${T} value=${t.session||s("All sessions")} onChange=${n=>e({session:n})} />
      ${t.session&&l`<button class="quiet" onClick=${()=>e({session:""})}>${s("All sessions")}</button>`}
      <select aria-label=${s("State")} value=${t.state||""} onChange=${n=>e({state:n.target.value})}>
        <option value="">${s("Any state")}</option>${w.map(n=>l`<option key=${n} value=${n}>${s(n)}</option>`)}
      </select>
      <${I} />
    </div>
    ${o?o.length?l`<${M} rows=${o} />`:l`<${b}>${s("No message is on record.")}<//>`:u(i)}
    ${t.why&&l`<${E} reference=${t.why} onClose=${()=>e({why:""})} />`}
  </div>`}function I(){let{query:t}=r.value,[e,a]=m("");return l`<form class="filters" onSubmit=${o=>{o.preventDefault(),e.trim()&&p("messages",{...t,why:e.trim()})}}>
    <input aria-label=${s("Number, run id or message id")} placeholder=${s("Number, run id or message id")} value=${e} onInput=${o=>a(o.target.value)} />
    <button type="submit">${s("Why?")}</button></form>`}function M({rows:t}){let{query:e}=r.value;return l`<div class="table-frame" tabindex="0"><table>
    <caption class="hidden">${s("Messages")}</caption>
    <thead><tr><th class="number">#</th><th>${s("State")}</th><th>${s("Message")}</th><th>${s("Session")}</th><th>${s("Accepted")}</th><th class="number">${s("Took")}</th></tr></thead>
    <tbody>${t.map((a,i)=>l`<tr key=${a.id??`held-${i}`}>
      <td class="number">${a.id??"\u2013"}</td>
      <td><span class="chip ${q[a.state]||""}">${s(a.state)}</span></td>
      <td>${a.runId||a.messageIds?l`<a href=${$("messages",{...e,why:a.runId||a.messageIds[0]})}>${c(a.text||"\u2026",120)}</a>`:c(a.text||"\u2026",120)}
        ${a.reason&&l`<br /><small>${s(a.reason)}</small>`}</td>
      <td><small>${a.sessionKey||a.channel}</small></td>
      <td class="when"><small>${h(a.acceptedAt)}</small></td>
      <td class="number">${a.endedAt?k(a.endedAt-a.acceptedAt):""}</td>
    </tr>`)}</tbody></table></div>`}function E({reference:t,onClose:e}){let a=d("messages.why",{ref:t}),{data:i}=a;return l`<${v} wide title=${s("Why?")} onClose=${e}>
    ${i?l`
      <ol class="story">${i.story.map((o,n)=>l`<li key=${n}>${o}</li>`)}</ol>
      ${i.answeredBy&&l`<section class="section"><h3>${s("Answered by another run")}</h3>
        <ol class="story">${i.answeredBy.story.map((o,n)=>l`<li key=${n}>${o}</li>`)}</ol></section>`}
      ${i.message&&l`<${K} message=${i.message} />`}`:u(a)}
  <//>`}function K({message:t}){return l`
    ${t.text&&l`<section class="section"><h3>${s("Message")}</h3><p class="plain">${t.text}</p></section>`}
    ${t.reply&&l`<section class="section"><h3>${s("Reply")}</h3><${A} text=${t.reply} /></section>`}
    ${t.changes?.length>0&&l`<section class="section"><h3>${s("States")}</h3><ol class="plain-list">${t.changes.map((e,a)=>l`<li key=${a}><span>${s(e.state)} ${e.reason&&l`<small>${s(e.reason)}</small>`}</span><small>${h(e.at)}</small></li>`)}</ol></section>`}
    ${t.toolCalls?.length>0&&l`<section class="section"><h3>${s("Tools")}</h3><ul class="plain-list">${t.toolCalls.map(e=>l`<li key=${e.id}><span>${e.name} <code>${c(e.arguments,160)}</code></span><span class="chip ${e.ok?"good":e.ok===!1?"bad":"warn"}">${e.ok?s("done"):e.ok===!1?s("failed"):s("running")}</span></li>`)}</ul></section>`}
    ${t.deliveries?.length>0&&l`<section class="section"><h3>${s("Deliveries")}</h3><ul class="plain-list">${t.deliveries.map(e=>l`<li key=${e.part}><span>${e.channel} #${e.part} ${e.error&&l`<small>${e.error}</small>`}</span><span class="chip">${e.state}</span></li>`)}</ul></section>`}
    <p class="buttons"><a href=${$("context",{session:t.sessionKey,run:t.runId})}>${s("What the model saw")}</a>
      <a href=${$("chat",{session:t.sessionKey})}>${s("Chat")}</a></p>`}export{P as Messages};
