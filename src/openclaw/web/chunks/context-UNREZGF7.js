import{a as N}from"./chunk-PWJUQJCF.js";import{d as I}from"./chunk-UWT6M56K.js";import{b,f as p,g as E,j as y}from"./chunk-5ENP5ZVT.js";import{a as S,b as C,c as g}from"./chunk-Z5JSN5I3.js";import{d as h,e as x,j as $,k as f}from"./chunk-3JIDODKK.js";import{c as m,j as n,k,q as t}from"./chunk-M2XPJY4L.js";import"./chunk-DCANE7XH.js";var W=/^(\/|~)|\.(md|txt|json)$/i,w=["prompt","files","skills","tools","facts","user","assistant","results"],u={prompt:"System prompt",files:"Workspace files",skills:"Skills",tools:"Tools",facts:"Facts of the turn",user:"What people said",assistant:"What the agent said",results:"Tool results"};function j(s){let o=[],i=(e,c,d,a={})=>d>0&&o.push({kind:e,name:c,chars:d,...a});for(let e of s.systemPrompt.parts){let c=W.test(e.title)?"files":/skill/i.test(e.title)?"skills":"prompt";i(c,e.title,e.chars)}i("tools",s.tools.names.join(", "),s.tools.chars),i("facts",t("Facts of the turn"),s.turnFacts.chars);for(let e of s.messages){let c=e.role==="user"?"user":e.role==="assistant"?"assistant":"results";i(c,e.preview,e.chars,{changed:e.changed,entryId:e.entryId})}let r=Object.fromEntries(w.map(e=>[e,0]));for(let e of o)r[e.kind]+=e.chars;return{pieces:o,sums:r,total:Object.values(r).reduce((e,c)=>e+c,0)}}function B(){let{query:s}=S.value,o=s.session||k.value.sessionKey||I(),i=l=>g("context",{...s,session:o,...l},{replace:!0}),r=$("messages.list",{sessionKey:o,limit:50}),e={key:o};s.run&&(e.runId=s.run),s.call&&(e.call=Number(s.call));let c=$("context.get",e),d=c.data,a=(r.data?.messages||[]).filter(l=>l.startedAt);return n`<div class="page">
    <${x} title=${t("Context")}>
      <${N} value=${o} onChange=${l=>g("context",{session:l})} />
      <select aria-label=${t("Run")} value=${s.run||""} onChange=${l=>i({run:l.target.value,call:""})}>
        <option value="">${t("Last run")}</option>
        ${a.map(l=>n`<option key=${l.runId} value=${l.runId}>#${l.id} ${y(l.text||"",40)}</option>`)}
      </select>
    <//>
    ${c.problem?.code==="INVALID_REQUEST"?n`<${h}>${s.run?c.problem.message:t("Nothing was sent to the model yet.")}<//>`:d?n`<${P} view=${d} set=${i} />`:f(c)}
    <${M} session=${o} />
  </div>`}function P({view:s,set:o}){let{pieces:i,sums:r,total:e}=j(s),c=w.filter(a=>r[a]>0),d=Math.round(e/4);return n`<section class="card">
      <div class="buttons spread"><strong>${s.model}</strong><span>${b(s.at)}</span>
        <span>${t("{n} characters, about {m} tokens",{n:p(e),m:E(d)})}</span>
        ${s.calls>1&&n`<span class="buttons"><button disabled=${s.call<=1} onClick=${()=>o({run:s.runId,call:s.call-1})} aria-label=${t("Call before")}>‹</button>
          ${t("call {n} of {m}",{n:s.call,m:s.calls})}
          <button disabled=${s.call>=s.calls} onClick=${()=>o({run:s.runId,call:s.call+1})} aria-label=${t("Next call")}>›</button></span>`}
      </div>
      <div class="window-bar" role="img" aria-label=${c.map(a=>`${t(u[a])} ${Math.round(100*r[a]/e)} %`).join(", ")}>
        ${c.map(a=>n`<i key=${a} class="tone-${a}" style=${{flexGrow:r[a]}} title=${t(u[a])}></i>`)}
      </div>
      <ul class="legend">${c.map(a=>n`<li key=${a}><i class="tone-${a}"></i>${t(u[a])} <small>${p(r[a])} · ${Math.round(100*r[a]/e)} %</small></li>`)}</ul>
      <p class="buttons">
        ${s.pruned>0&&n`<span class="chip warn">${t("{n} old tool results pruned",{n:s.pruned})}</span>`}
        ${s.shortened>0&&n`<span class="chip warn">${t("{n} messages shortened",{n:s.shortened})}</span>`}
        ${s.compaction&&n`<span class="chip warn">${t("begins with a summary")}</span>`}
        ${s.systemPrompt.truncated.map(a=>n`<span key=${a.name} class="chip warn">${t("{name} was cut",{name:a.name})}</span>`)}
        ${!s.exact&&n`<span class="chip bad">${t("not all of it is stored any more")}</span>`}
      </p>
    </section>
    ${s.since&&n`<section class="card"><h2>${t("Since the run before")}</h2>
      ${s.since.changes.length?n`<${T} lines=${s.since.changes} />`:n`<p class="hint">${t("Nothing changed but the conversation.")}</p>`}</section>`}
    <details class="card"><summary><h2>${t("Every piece, in order")}</h2></summary>
      <div class="table-frame" tabindex="0"><table><caption class="hidden">${t("Every piece, in order")}</caption>
        <thead><tr><th>${t("Kind")}</th><th>${t("Beginning")}</th><th class="number">${t("Characters")}</th></tr></thead>
        <tbody>${i.slice(0,500).map((a,l)=>n`<tr key=${l}><td><i class="dot tone-${a.kind}"></i> ${t(u[a.kind])}</td><td>${y(a.name||"",160)}${a.changed?n` <span class="chip warn">${t("changed for the model")}</span>`:""}</td><td class="number">${p(a.chars)}</td></tr>`)}</tbody>
      </table></div></details>`}function T({lines:s}){return n`<div class="changes">${s.map((o,i)=>{let r=o.trim();if(o.startsWith(" "))return n`<div key=${i} class=${r.startsWith("+")?"came":r.startsWith("-")?"went":""}>${r}</div>`;let e=r.indexOf(":");return n`<h3 key=${i}>${e<0?t(r):`${t(r.slice(0,e))}${r.slice(e)}`}</h3>`})}</div>`}var v=s=>(s||[]).map(o=>o.replace(/^\w+ message(?= )|^.*$/,i=>t(i))).join(", ");function M({session:s}){let[o,i]=m(""),[r,e]=m(""),c=$("context.find",{key:s,phrase:r},{skip:r.length<2}),{data:d}=c,a=l=>{l.preventDefault(),e(o.trim())};return n`<section class="card"><h2>${t("Find a phrase")}</h2>
    <form class="filters" onSubmit=${a} role="search">
      <input type="search" aria-label=${t("Phrase")} placeholder=${t("Words the model may have seen")} value=${o} onInput=${l=>i(l.target.value)} /><button type="submit">${t("Find")}</button>
    </form>
    ${r.length>=2&&(d?n`
      <p>${d.inViewNow?t("It is in the model's view now: {where}",{where:v(d.where)}):t("It is not in the model's view now.")} <small>${t("{n} runs searched",{n:d.runs})}</small></p>
      ${d.sightings.length?n`<ul class="plain-list">${d.sightings.map((l,F)=>n`<li key=${F}>
        <span>${l.change==="entered"?t("came into view"):t("left")} ${v(l.where)} ${l.why&&n`<small>${t(l.why)}</small>`}</span>
        <a href=${C("context",{session:s,run:l.runId})}>${b(l.at)}</a></li>`)}</ul>`:n`<${h}>${t("No run had it in view.")}<//>`}`:f(c))}
  </section>`}export{B as Context,j as weighed};
