import{h as B}from"./chunk-UWT6M56K.js";import{a as O}from"./chunk-6CVG2CEQ.js";import{b as E,c as F,f as $,g as I}from"./chunk-5ENP5ZVT.js";import{a as R,b as C,c as U}from"./chunk-Z5JSN5I3.js";import{c as L,d as S,e as M,f as x,g as W,h as v,j as g,k as D}from"./chunk-3JIDODKK.js";import{c as h,d as A,i as j,j as o,q as e,u as b}from"./chunk-M2XPJY4L.js";import"./chunk-DCANE7XH.js";var P=50,H=8<<20,_={"":"Any time",60:"Last hour",1440:"Last day",10080:"Last week"};function le(){let{query:t}=R.value,[i,n]=h(t.search||""),c=s=>U("sessions",{...t,offset:"",...s},{replace:!0});A(()=>{let s=setTimeout(()=>i!==(t.search||"")&&c({search:i}),200);return()=>clearTimeout(s)},[i]);let l=t.in==="words";return o`<div class="page">
    <${M} title=${e("Sessions")}><button disabled=${k.value!==null} onClick=${q}>${k.value?e("{n} of {m} packed",k.value):e("Pack old transcripts")}</button><//>
    <div class="filters" role="search">
      <input type="search" aria-label=${e("Search")} placeholder=${l?e("Words that were said"):e("Name or key")} value=${i} onInput=${s=>n(s.target.value)} />
      <select aria-label=${e("Search in")} value=${t.in||""} onChange=${s=>c({in:s.target.value})}>
        <option value="">${e("Names")}</option><option value="words">${e("Words that were said")}</option>
      </select>
      ${!l&&o`<select aria-label=${e("Active")} value=${t.active||""} onChange=${s=>c({active:s.target.value})}>
        ${Object.entries(_).map(([s,u])=>o`<option key=${s} value=${s}>${e(u)}</option>`)}
      </select>`}
    </div>
    ${l?o`<${z} words=${t.search||""} />`:o`<${w} query=${t} set=${c} />`}
  </div>`}var k=j(null);async function q(){k.value="";let t=0;try{for(let i=0;i<1e4;i++){let n=await b("sessions.archive",{most:20});if(t+=n.compressed,!n.left||!n.compressed)break;k.value={n:$(t),m:$(t+n.left)}}v(e("{n} transcripts were packed.",{n:$(t)}))}catch(i){v(i)}finally{k.value=null}}function w({query:t,set:i}){let n=Number(t.offset)||0,c={limit:P,offset:n,includeDerivedTitles:!0};t.search&&(c.search=t.search),t.active&&(c.activeMinutes=Number(t.active));let l=g("sessions.list",c),[s,u]=h(null),{data:d}=l;return d?d.sessions.length?o`<div class="table-frame" tabindex="0"><table>
      <caption class="hidden">${e("Sessions")}</caption>
      <thead><tr><th>${e("Session")}</th><th>${e("Channel")}</th><th>${e("Model")}</th><th class="number">${e("Context")}</th><th>${e("Active")}</th><th><span class="hidden">${e("Actions")}</span></th></tr></thead>
      <tbody>${d.sessions.map(a=>o`<tr key=${a.key}>
        <td><a href=${C("chat",{session:a.key})}>${B(a)}</a><br /><small>${a.key}</small></td>
        <td>${a.channel&&a.channel!=="unknown"?a.channel:"\u2013"}</td><td class="short">${a.model||"\u2013"}</td>
        <td class="number">${a.totalTokens?`${I(a.totalTokens)} / ${I(a.contextTokens)}`:"\u2013"}${a.compactionCount?o`<br /><small>🧹 ${a.compactionCount}</small>`:""}</td>
        <td class="when" title=${E(a.updatedAt)}>${F(a.updatedAt)}</td>
        <td><button onClick=${()=>u(a)} aria-label=${e("Settings of {name}",{name:a.key})}>${e("Settings")}</button></td>
      </tr>`)}</tbody>
    </table></div>
    <nav class="pager" aria-label=${e("Pages of the list")}>
      <button disabled=${n===0} onClick=${()=>i({offset:Math.max(0,n-P)||""})}>${e("Back")}</button>
      <span>${e("{from}\u2013{to} of {n}",{from:$(n+1),to:$(n+d.sessions.length),n:$(d.totalCount)})}</span>
      <button disabled=${!d.hasMore} onClick=${()=>i({offset:n+P})}>${e("Next")}</button>
    </nav>
    ${s&&o`<${J} row=${s} onClose=${()=>u(null)} changed=${l.reload} />`}`:o`<${S}>${e("No session found.")}<//>`:D(l)}function z({words:t}){let i=g("sessions.search",{query:t,limit:40,readBytes:H},{skip:!t.trim()});if(A(()=>{i.data&&!i.data.complete&&i.reload()},[i.data]),!t.trim())return o`<${S}>${e("Write the words to find. Words in double quotes must follow each other.")}<//>`;let{data:n}=i;if(!n)return D(i);let c=!n.complete&&o`<${L}>${e("Reading transcripts for the first time: {n} of {m}",{n:$(n.indexed.done),m:$(n.indexed.total)})}<//>`;return n.results.length?o`${c}<ul class="found">${n.results.map((l,s)=>o`<li key=${s} class="card">
    ${l.sessionKey?o`<a href=${C("chat",{session:l.sessionKey})}>${l.sessionKey}</a>`:o`<span>${l.sessionId}</span>`}
    <small> · ${l.role||""} · ${E(l.timestamp||l.at)}</small>
    <p class="plain">${l.snippet||l.text||""}</p>
  </li>`)}</ul>`:c||o`<${S}>${e("Nobody said that.")}<//>`}var K={thinkingLevel:["Thinking",["off","minimal","low","medium","high","xhigh"]],verboseLevel:["Tool notices",["off","on","full"]],reasoningLevel:["Reasoning",["off","on","stream"]],responseUsage:["Usage footer",["off","tokens","full"]],elevatedLevel:["Outside the sandbox",["off","on","ask","full"]],sendPolicy:["Sending",["allow","deny"]]};function J({row:t,onClose:i,changed:n}){let[c,l]=h({label:t.label||"",...Object.fromEntries(Object.keys(K).map(r=>[r,t[r]||""]))}),[s,u]=h(""),[d,a]=h(""),V=(g("models.list").data?.models||[]).filter(r=>r.available),N=r=>p=>l({...c,[r]:p.target.value}),y=async(r,p)=>{try{u("");let m=await r();return p&&v(p),n(),m}catch(m){return u(m.message),null}},G=r=>{r.preventDefault();let p=Object.entries(c).filter(([f,T])=>T!==(t[f]||"")),m=Object.fromEntries(p.map(([f,T])=>[f,T||null]));d&&(m.model=d==="default"?null:d),y(()=>b("sessions.patch",{key:t.key,...m}),e("Saved")).then(f=>f&&i())};return o`<${W} title=${t.key} onClose=${i}>
    ${s&&o`<${L} kind="error">${s}<//>`}
    <form onSubmit=${G}>
      <${x} label=${e("Label")}><input value=${c.label} maxlength="64" onInput=${N("label")} /><//>
      <${x} label=${e("Model")}><select value=${d} onChange=${r=>a(r.target.value)}>
        <option value="">${t.model||e("Default")}</option><option value="default">${e("Default")}</option>
        ${V.map(r=>o`<option key=${`${r.provider}/${r.id}`} value=${`${r.provider}/${r.id}`}>${r.provider}/${r.id}</option>`)}
      </select><//>
      <div class="grid">${Object.entries(K).map(([r,[p,m]])=>o`<${x} key=${r} label=${e(p)}>
        <select value=${c[r]} onChange=${N(r)}><option value="">${e("Default")}</option>${m.map(f=>o`<option key=${f}>${f}</option>`)}</select>
      <//>`)}</div>
      <div class="buttons"><button class="primary" type="submit">${e("Save")}</button>
        <a href=${C("transcript",{session:t.key})}>${e("Transcript")}</a><a href=${C("context",{session:t.key})}>${e("Context")}</a></div>
    </form>
    <${Q} row=${t} act=${y} />
    <${X} row=${t} act=${y} />
    <section class="section"><h3>${e("Start over or delete")}</h3>
      <div class="buttons">
        <${O} onSure=${()=>y(()=>b("sessions.reset",{key:t.key}),e("A new session has begun; the old transcript is kept."))}>${e("Start over")}<//>
        <${O} danger onSure=${()=>y(()=>b("sessions.delete",{key:t.key}),e("Deleted")).then(r=>r&&i())}>${e("Delete")}<//>
      </div>
    </section>
  <//>`}function Q({row:t,act:i}){let[n,c]=h(""),[l,s]=h(!1),u=d=>async()=>{s(!0);let a=await i(()=>b("sessions.compaction",{key:t.key,action:d}));s(!1),a&&(d==="preview"?c(a.text):d==="undo"?v(e("Undone; the next prompt has {n} tokens.",{n:$(a.tokensAfter)})):a.status==="compacted"?v(e("Condensed from {a} to {b} tokens.",{a:$(a.tokensBefore),b:$(a.tokensAfter)})):v(new Error(a.reason||a.status)))};return o`<section class="section"><h3>${e("Condense the older part")}</h3>
    <div class="buttons" aria-busy=${l}>
      <button type="button" disabled=${l} onClick=${u("preview")}>${e("Preview")}</button>
      <button type="button" disabled=${l} onClick=${u("compact")}>${e("Compact")}</button>
      <button type="button" disabled=${l} onClick=${u("undo")}>${e("Undo")}</button>
      ${l&&o`<span class="hint">${e("Working\u2026")}</span>`}
    </div>
    ${n&&o`<pre tabindex="0" class="wrap" aria-label=${e("Preview")}>${n}</pre>`}
  </section>`}function X({row:t,act:i}){let n=g("sessions.archived",{key:t.key}),c=n.data?.sessions||[];if(!c.length)return null;let l=s=>i(()=>b("sessions.resume",{key:t.key,sessionId:s.sessionId}),e("Resumed")).then(()=>n.reload());return o`<section class="section"><h3>${e("Earlier sessions of this key")}</h3>
    <ul class="plain-list">${c.slice(0,20).map(s=>o`<li key=${s.sessionId}>
      <span>${s.title||s.sessionId}<br /><small>${E(s.endedAt)} ${s.reason||""}</small></span>
      <button type="button" onClick=${()=>l(s)}>${e("Resume")}</button>
    </li>`)}</ul></section>`}export{le as Sessions};
