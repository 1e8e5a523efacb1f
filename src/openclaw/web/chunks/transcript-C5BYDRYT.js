import{a as U}from"./chunk-PWJUQJCF.js";import{d as R}from"./chunk-UWT6M56K.js";import"./chunk-5ENP5ZVT.js";import{a as F,b as K,c as L}from"./chunk-Z5JSN5I3.js";import{d as q,e as A,f as H,h as x,j as _,k as D,l as O}from"./chunk-3JIDODKK.js";import{c as v,d as I,f as T,g as M,j as d,k as N,q as a,u as S}from"./chunk-M2XPJY4L.js";import"./chunk-DCANE7XH.js";var k=38,J=15,z={model_change:"model",thinking_level_change:"thinking level",custom:"mark",custom_message:"internal note",branch_summary:"summary of a branch",session_info:"session"};function Q(p,r){let n=new Map(p.map(e=>[e.id,e])),s=new Map,l=[];for(let e of p)e.parentId&&n.has(e.parentId)?(s.has(e.parentId)||s.set(e.parentId,[]),s.get(e.parentId).push(e)):l.push(e);let t=new Set;for(let e=n.get(r);e&&!t.has(e.id);e=n.get(e.parentId))t.add(e.id);let i=[],c=[...l].reverse().map(e=>({entry:e,depth:0}));for(;c.length;){let{entry:e,depth:o}=c.pop();i.push({entry:e,depth:o,active:t.has(e.id)});let $=s.get(e.id)||[],m=$.find(h=>t.has(h.id))||$[$.length-1];m&&c.push({entry:m,depth:o});for(let h of[...$].reverse())h!==m&&c.push({entry:h,depth:o+1})}return i}function oe(){let{query:p}=F.value,r=p.session||N.value.sessionKey||R(),n=_("sessions.tree",{key:r}),{data:s}=n,l=M(()=>s?Q(s.entries,s.leafId):[],[s]),[t,i]=v(null);I(()=>i(null),[r]);let c=l.reduce((e,o)=>e+(o.depth>0&&o.entry.parentId?1:0),0);return d`<div class="page full">
    <${A} title=${a("Transcript")}>
      <${U} value=${r} onChange=${e=>L("transcript",{session:e})} />
      <button onClick=${n.reload}>${a("Refresh")}</button>
    <//>
    ${n.problem?.code==="INVALID_REQUEST"||l.length===0&&s?d`<${q}>${a("Nothing is written yet.")}<//>`:s?d`
      <p class="hint">${a("{n} entries, {m} of them on other branches",{n:l.length,m:c})}</p>
      <div class="split">
        <${V} session=${r} data=${s} rows=${l} chosen=${t} choose=${i} />
        ${t&&d`<${X} key=${t} session=${r} id=${t} leaf=${s.leafId} label=${s.entries.find(e=>e.id===t)?.label||""} reload=${n.reload} onClose=${()=>i(null)} />`}
      </div>`:D(n)}
  </div>`}function V({session:p,data:r,rows:n,chosen:s,choose:l}){let t=T(null),[i,c]=v(0),[e,o]=v(600),$=T(new Map),[,m]=v(0),h=Math.max(0,Math.floor(i/k)-J),w=Math.min(n.length,h+Math.ceil(e/k)+2*J),f=n.slice(h,w);return I(()=>{$.current=new Map,o(t.current.clientHeight),t.current.scrollTop=t.current.scrollHeight},[r]),I(()=>{let u=f.map(y=>y.entry.id).filter(y=>!$.current.has(y));if(!u.length)return;let b=setTimeout(()=>{S("sessions.entries",{key:p,ids:u.slice(0,200)}).then(({entries:y})=>{for(let g of y)$.current.set(g.id,g);m(g=>g+1)},x)},60);return()=>clearTimeout(b)},[h,w,n]),d`<div class="tree" ref=${t} onScroll=${()=>t.current&&c(t.current.scrollTop)} onKeyDown=${u=>{let b={ArrowDown:1,ArrowUp:-1}[u.key];if(!b)return;u.preventDefault();let y=n.findIndex(P=>P.entry.id===u.target.dataset.entry)+b,g=n[y];if(!g)return;let C=y*k;(C<t.current.scrollTop||C+k>t.current.scrollTop+t.current.clientHeight)&&(t.current.scrollTop=C-100),l(g.entry.id),requestAnimationFrame(()=>t.current?.querySelector(`[data-entry="${CSS.escape(g.entry.id)}"]`)?.focus())}} tabindex="0" role="group" aria-label=${a("Entries")}>
    <ul style=${{height:`${n.length*k}px`}}>
      ${f.map((u,b)=>d`<${W} key=${u.entry.id} row=${u} top=${(h+b)*k} facts=${$.current.get(u.entry.id)}
        leaf=${u.entry.id===r.leafId} chosen=${u.entry.id===s} choose=${l} />`)}
    </ul></div>`}function W({row:p,top:r,facts:n,leaf:s,chosen:l,choose:t}){let{entry:i,depth:c,active:e}=p,o=n?.role||i.type;return d`<li style=${{top:`${r}px`}}>
    <button data-entry=${i.id} aria-pressed=${l} class=${e?"active":""} style=${{paddingLeft:`${10+Math.min(c,8)*22}px`}} onClick=${()=>t(i.id)}>
      ${c>0&&d`<span aria-hidden="true">⎇</span>`}<span class="chip">${a(z[o]||o)}</span>
      ${i.label&&d`<span class="chip warn">${i.label}</span>`}
      <span class=${n?.failed?"text failed":"text"}>${n?.text||""}</span>${s&&d`<span class="chip good">${a("newest")}</span>`}
    </button></li>`}function X({session:p,id:r,leaf:n,label:s,reload:l,onClose:t}){let i=_("sessions.entries",{key:p,ids:[r],raw:!0}),[c,e]=v(s),o=i.data?.entries[0]?.raw,$=M(()=>{try{return o?JSON.stringify(JSON.parse(o),null,2):""}catch{return o}},[o]),m=async(f,E)=>{try{await f(),x(E),l()}catch(u){x(u)}},h=()=>m(()=>S("sessions.branch",{key:p,entryId:r,summarize:!1}),a("The conversation goes on from here.")),w=f=>{f.preventDefault(),m(()=>S("sessions.label",{key:p,entryId:r,label:c}),a("Saved"))};return d`<aside class="details card" aria-label=${a("Entry")}>
    <div class="buttons"><strong>${r}</strong><button class="quiet" onClick=${t}>${a("Close")}</button></div>
    <div class="buttons">
      <button disabled=${r===n} onClick=${h}>${a("Continue from here")}</button>
      <a href=${K("chat",{session:p})}>${a("Chat")}</a>
      ${o&&d`<button class="quiet" onClick=${()=>O(o)}>${a("Copy")}</button>`}
    </div>
    <form class="buttons" onSubmit=${w}><${H} label=${a("Label")}><input value=${c} maxlength="200" onInput=${f=>e(f.target.value)} /><//><button type="submit">${a("Save")}</button></form>
    ${D(i)||d`<pre tabindex="0" class="wrap" aria-label=${a("Stored line")}>${$.length>6e4?`${$.slice(0,6e4)}\u2026`:$}</pre>`}
  </aside>`}export{oe as Transcript,Q as laidOut};
