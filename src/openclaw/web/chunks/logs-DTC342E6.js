import{c as x,d as O,e as T}from"./chunk-3JIDODKK.js";import{c as u,d as L,e as w,f as b,g as y,j as p,q as n,r as S,u as k}from"./chunk-M2XPJY4L.js";import"./chunk-DCANE7XH.js";var h=["debug","info","warn","error"],E=3e3,C=500,N=2e3,j=0;function R(t){try{let r=JSON.parse(t),$=String(r.level||"info").toLowerCase().replace("warning","warn").replace("critical","error"),s=Object.entries(r.fields||{}).map(([i,l])=>`${i}=${typeof l=="object"?JSON.stringify(l):l}`),d=String(r.time||"").replace("T"," ").slice(0,23);return{id:++j,line:t,level:$,at:d,from:r.subsystem||"",text:String(r.message??t),more:s.join(" ")}}catch{return{id:++j,line:t,level:"info",at:"",from:"",text:t,more:""}}}function M(){let[t,r]=u([]),[$,s]=u(""),[d,i]=u(""),l=b(null),f=S.value.phase==="open";return L(()=>{if(!f)return;let m=!0,c=0,a=async()=>{try{let o=await k("logs.tail",{limit:1e3,...l.current===null?{}:{cursor:l.current}});if(!m)return;l.current=o.cursor,i(o.file),(o.lines.length||o.reset)&&r(e=>[...o.reset?[]:e,...o.lines.map(R)].slice(-E)),s("")}catch(o){m&&s(o.message)}m&&(c=setTimeout(a,N))};return a(),()=>(m=!1,clearTimeout(c))},[f]),{lines:t,problem:$,file:d}}function _(){let{lines:t,problem:r,file:$}=M(),[s,d]=u("info"),[i,l]=u(""),[f,m]=u(!0),c=b(null),a=y(()=>{let e=i.trim().toLowerCase(),g=h.indexOf(s);return t.filter(v=>h.indexOf(v.level)>=g&&(!e||v.line.toLowerCase().includes(e))).slice(-C)},[t,s,i]);w(()=>{f&&c.current&&(c.current.scrollTop=c.current.scrollHeight)},[a,f]);let o=()=>{let e=document.createElement("a");e.href=URL.createObjectURL(new Blob([a.map(g=>`${g.line}
`).join("")],{type:"application/x-ndjson"})),e.download="openclaw.log",e.click(),setTimeout(()=>URL.revokeObjectURL(e.href),1e3)};return p`<div class="page full">
    <${T} title=${n("Logs")}><button onClick=${o}>${n("Download")}</button><//>
    <div class="filters" role="search">
      <input type="search" aria-label=${n("Search")} placeholder=${n("Search")} value=${i} onInput=${e=>l(e.target.value)} />
      <select aria-label=${n("Level")} value=${s} onChange=${e=>d(e.target.value)}>${h.map(e=>p`<option key=${e}>${e}</option>`)}</select>
      <label class="check"><input type="checkbox" checked=${f} onChange=${e=>m(e.target.checked)} /> ${n("Follow")}</label>
    </div>
    ${r&&p`<${x} kind="error">${r}<//>`}
    <p class="hint">${$}</p>
    <div class="log-lines" ref=${c} tabindex="0" role="log" aria-label=${n("Log lines")} aria-live="off">
      ${a.length?a.map(e=>p`<div key=${e.id} class="level-${e.level}"><span>${e.at}</span> <b>${e.level}</b> <i>${e.from}</i> ${e.text} <small>${e.more}</small></div>`):p`<${O}>${n("No line fits.")}<//>`}
    </div>
  </div>`}export{_ as Logs,R as readLine};
