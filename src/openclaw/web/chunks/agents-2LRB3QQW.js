import{a as E}from"./chunk-6CVG2CEQ.js";import{b as k,c as R,e as I,h as N,j as T}from"./chunk-5ENP5ZVT.js";import{b as D}from"./chunk-Z5JSN5I3.js";import{c as w,d as C,e as M,f as d,g as y,h as v,j as m,k as f}from"./chunk-3JIDODKK.js";import{c as p,d as S,j as s,q as t,t as A,u as h}from"./chunk-M2XPJY4L.js";import"./chunk-DCANE7XH.js";function L(){let a=m("agents.list",{details:!0});return s`<div class="page">
    <${M} title=${t("Agents")} />
    <h2>${t("Who answers")}</h2>
    ${a.data?a.data.agents.map(o=>s`<${O} key=${o.id} agent=${o} isDefault=${o.id===a.data.defaultId} />`):f(a)}
    <${W} agents=${a.data?.agents||[]} />
  </div>`}function O({agent:a,isDefault:o}){let $=m("agents.files.list",{agentId:a.id}),[e,i]=p("");return s`<section class="card"><div class="buttons spread"><h3>${a.identity?.emoji||""} ${a.identity?.name||a.name||a.id}</h3>
      <span class="buttons">${o&&s`<span class="chip good">${t("default")}</span>`}<span class="chip">${a.model||t("no model")}</span></span></div>
    <p class="hint">${a.workspace}${a.routes?.length?s`<br />${a.routes.join(", ")}`:""}</p>
    <div class="buttons">${($.data?.files||[]).map(l=>s`<button key=${l.name} class=${l.missing?"missing":""} onClick=${()=>i(l.name)}>${l.name} <small>${l.missing?t("not there"):N(l.size)}</small></button>`)}
      <a href=${D("chat",{session:`agent:${a.id}:main`})}>${t("Chat")}</a></div>
    ${e&&s`<${z} agentId=${a.id} name=${e} onClose=${()=>(i(""),$.reload())} />`}
  </section>`}function z({agentId:a,name:o,onClose:$}){let e=m("agents.files.get",{agentId:a,name:o}),[i,l]=p(null),u=i??e.data?.file.content??"",r=()=>h("agents.files.set",{agentId:a,name:o,content:u}).then(()=>(v(t("Saved")),$()),v);return s`<${y} wide title=${`${o} (${a})`} onClose=${$}>
    ${f(e)||s`<textarea class="code tall" aria-label=${o} value=${u} onInput=${c=>l(c.target.value)}></textarea>
      <div class="buttons"><button class="primary" disabled=${i===null} onClick=${r}>${t("Save")}</button><button onClick=${$}>${t("Cancel")}</button></div>`}
  <//>`}function H(a){return a.kind==="at"?t("once, {time}",{time:k(Date.parse(a.at)||a.atMs)}):a.kind==="every"?t("every {time}",{time:I(a.everyMs)}):`${a.expr}${a.tz?` (${a.tz})`:""}`}function W({agents:a}){let o=m("cron.list",{includeDisabled:!0}),$=m("cron.status"),[e,i]=p(!1),[l,u]=p(null);S(()=>A.on(n=>n==="cron"&&o.reload()),[]);let r=(n,g,b)=>()=>h(n,g).then(()=>(b&&v(b),o.reload()),v),c=o.data?.jobs;return s`<div class="buttons spread"><h2>${t("Scheduled jobs")}</h2><button class="primary" onClick=${()=>i(!0)}>${t("New job")}</button></div>
    ${$.data&&$.data.enabled===!1&&s`<${w}>${t("Scheduled jobs are switched off.")}<//>`}
    ${c?c.length?c.map(n=>s`<section class="card" key=${n.id}>
      <div class="buttons spread"><h3>${n.name}</h3><span class="buttons"><span class="chip">${H(n.schedule)}</span>
        <span class="chip ${n.enabled===!1?"":n.state?.lastStatus==="error"?"bad":"good"}">${n.enabled===!1?t("off"):n.state?.lastStatus||t("on")}</span></span></div>
      <p class="plain">${T(n.payload.message||n.payload.text||"",400)}</p>
      <p class="hint">${n.agentId||""} ${n.state?.nextRunAtMs?t("next {time}",{time:k(n.state.nextRunAtMs)}):""} ${n.state?.lastRunAtMs?`\xB7 ${t("last {ago}",{ago:R(n.state.lastRunAtMs)})}`:""} ${n.state?.lastError?s`<span class="bad">${n.state.lastError}</span>`:""}</p>
      <div class="buttons">
        <button onClick=${r("cron.run",{id:n.id},t("Started"))}>${t("Run now")}</button>
        <button onClick=${r("cron.update",{id:n.id,patch:{enabled:n.enabled===!1}})}>${n.enabled===!1?t("Switch on"):t("Switch off")}</button>
        <button onClick=${()=>u(n)}>${t("History")}</button>
        <${E} danger onSure=${r("cron.remove",{id:n.id},t("Removed"))}>${t("Remove")}<//>
      </div></section>`):s`<${C}>${t("No job is scheduled.")}<//>`:f(o)}
    ${e&&s`<${F} agents=${a} onClose=${()=>i(!1)} added=${()=>(i(!1),o.reload())} />`}
    ${l&&s`<${q} job=${l} onClose=${()=>u(null)} />`}`}function q({job:a,onClose:o}){let $=m("cron.runs",{id:a.id,limit:100}),e=$.data?.entries;return s`<${y} wide title=${t("Runs of {name}",{name:a.name})} onClose=${o}>
    ${e?e.length?s`<ul class="plain-list">${[...e].reverse().map((i,l)=>s`<li key=${l}><span>${k(i.runAtMs||i.ts)} <small>${i.durationMs===void 0?"":I(i.durationMs)}</small><br /><small>${i.error||i.summary||""}</small></span><span class="chip ${i.status==="ok"?"good":i.status==="error"?"bad":""}">${i.status||i.action}</span></li>`)}</ul>`:s`<${C}>${t("It has not run yet.")}<//>`:f($)}
  <//>`}function F({agents:a,onClose:o,added:$}){let[e,i]=p({name:"",agentId:"",kind:"cron",expr:"0 9 * * *",minutes:60,at:"",target:"isolated",delivery:"none",text:""}),[l,u]=p(""),r=n=>g=>i({...e,[n]:g.target.value}),c=async n=>{n.preventDefault();let g={cron:{kind:"cron",expr:e.expr,tz:Intl.DateTimeFormat().resolvedOptions().timeZone},every:{kind:"every",everyMs:Number(e.minutes)*6e4},at:{kind:"at",at:e.at?new Date(e.at).toISOString():""}}[e.kind],b=e.target==="main"?{kind:"systemEvent",text:e.text}:{kind:"agentTurn",message:e.text};try{let x=e.target==="main"?{}:{delivery:{mode:e.delivery}};await h("cron.add",{name:e.name,schedule:g,payload:b,sessionTarget:e.target,...x,...e.agentId?{agentId:e.agentId}:{}}),v(t("Saved")),$()}catch(x){u(x.message)}};return s`<${y} title=${t("New job")} onClose=${o}><form onSubmit=${c}>
    ${l&&s`<${w} kind="error">${l}<//>`}
    <${d} label=${t("Name")}><input required value=${e.name} onInput=${r("name")} /><//>
    <${d} label=${t("What the agent is told")}><textarea required rows="3" value=${e.text} onInput=${r("text")}></textarea><//>
    <div class="grid">
      <${d} label=${t("When")}><select value=${e.kind} onChange=${r("kind")}><option value="cron">${t("On a cron schedule")}</option><option value="every">${t("Again and again")}</option><option value="at">${t("Once")}</option></select><//>
      ${e.kind==="cron"&&s`<${d} label=${t("Cron expression")}><input value=${e.expr} onInput=${r("expr")} spellcheck="false" /><//>`}
      ${e.kind==="every"&&s`<${d} label=${t("Minutes between runs")}><input type="number" min="1" value=${e.minutes} onInput=${r("minutes")} /><//>`}
      ${e.kind==="at"&&s`<${d} label=${t("Time")}><input type="datetime-local" required value=${e.at} onInput=${r("at")} /><//>`}
      <${d} label=${t("Where")}><select value=${e.target} onChange=${r("target")}><option value="isolated">${t("In a session of its own")}</option><option value="main">${t("In the main session")}</option></select><//>
      ${e.target==="isolated"&&s`<${d} label=${t("Its answer")}><select value=${e.delivery} onChange=${r("delivery")}><option value="none">${t("is kept in its session")}</option><option value="announce">${t("goes to the last chat on a channel")}</option></select><//>`}
      ${a.length>1&&s`<${d} label=${t("Agent")}><select value=${e.agentId} onChange=${r("agentId")}><option value="">${t("Default")}</option>${a.map(n=>s`<option key=${n.id}>${n.id}</option>`)}</select><//>`}
    </div>
    <div class="buttons"><button class="primary" type="submit">${t("Save")}</button><button type="button" onClick=${o}>${t("Cancel")}</button></div>
  </form><//>`}export{L as Agents};
