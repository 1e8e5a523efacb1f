import{h as f,m as C}from"./chunk-UWT6M56K.js";import{c as T}from"./chunk-5ENP5ZVT.js";import{a as y,d as k,g as S,j as b}from"./chunk-3JIDODKK.js";import{c,d as p,f as g,j as s,q as n}from"./chunk-M2XPJY4L.js";var v=50;function R({value:i,onChange:a,create:u=!1}){let[$,o]=c(!1);return s`<button class="session-select" aria-haspopup="dialog" title=${i} onClick=${()=>o(!0)}>
      <span class="hidden">${n("Session")}: </span><span class="name">${f(C(i)||{key:i})}</span><${y} name="down" />
    </button>
    ${$&&s`<${E} value=${i} create=${u} onClose=${()=>o(!1)}
      onChange=${m=>(o(!1),a(m))} />`}`}function E({value:i,onChange:a,onClose:u,create:$}){let[o,m]=c(""),[t,D]=c(""),d=g(null);p(()=>{let e=setTimeout(()=>D(o.trim()),150);return()=>clearTimeout(e)},[o]),p(()=>d.current.focus(),[]);let{data:r}=b("sessions.list",{limit:v,offset:0,includeDerivedTitles:!0,...t?{search:t}:{}}),l=r?.sessions||[],O=e=>{e.preventDefault(),l.length&&t&&a(l[0].key)},h=$&&t&&/^(?!agent:|subagent:)[\w.:-]+$/i.test(t)&&!l.some(e=>e.key.endsWith(`:${t}`));return s`<${S} title=${n("Sessions")} onClose=${u}>
    <form onSubmit=${O}><input ref=${d} type="search" aria-label=${n("Search")} placeholder=${n("Search")} value=${o} onInput=${e=>m(e.target.value)} /></form>
    <ul class="choices">
      ${l.map(e=>s`<li key=${e.key}><button aria-current=${e.key===i?"true":void 0} onClick=${()=>a(e.key)}>
        <strong>${f(e)}</strong><small>${e.key} · ${T(e.updatedAt)}</small></button></li>`)}
      ${h&&s`<li><button onClick=${()=>a(t)}><strong>${n("New session: {name}",{name:t})}</strong></button></li>`}
    </ul>
    ${r&&!l.length&&!h&&s`<${k}>${n("No session found.")}<//>`}
    ${r?.hasMore&&s`<p class="hint">${n("{n} sessions in all; search to find others.",{n:r.totalCount})}</p>`}
  <//>`}export{R as a};
