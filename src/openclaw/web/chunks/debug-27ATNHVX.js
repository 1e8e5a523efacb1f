import{a as y,e as w}from"./chunk-5ENP5ZVT.js";import{c as g,e as k,f as d,l as x}from"./chunk-3JIDODKK.js";import{c as r,d as h,j as a,q as e,r as v,t as f,u as b}from"./chunk-M2XPJY4L.js";import"./chunk-DCANE7XH.js";var N=250,E=2e5;function P(){let l=v.value.hello,c=l.features.methods,[t,p]=r("status"),[i,$]=r("{}"),[s,u]=r(null),S=async o=>{o.preventDefault();let m=performance.now();try{let n=await b(t,JSON.parse(i||"{}"));u({ok:!0,text:JSON.stringify(n,null,2),took:performance.now()-m})}catch(n){u({ok:!1,text:n.code?`${n.code}: ${n.message}${n.details?`
${JSON.stringify(n.details,null,2)}`:""}`:n.message,took:performance.now()-m})}};return a`<div class="page">
    <${k} title=${e("Debug")}><span class="chip">${l.server.version}</span><span class="chip">${l.server.host}</span><//>
    <section class="card"><h2>${e("Call a method")}</h2>
      <form onSubmit=${S}>
        <${d} label=${e("Method")}><input list="methods" value=${t} onInput=${o=>p(o.target.value)} spellcheck="false" /><//>
        <datalist id="methods">${[...c].sort().map(o=>a`<option key=${o} value=${o} />`)}</datalist>
        <${d} label=${e("Parameters (JSON)")}><textarea class="code" rows="5" spellcheck="false" value=${i} onInput=${o=>$(o.target.value)}></textarea><//>
        <button class="primary" type="submit">${e("Call")}</button>
      </form>
      ${s&&a`<div class="section"><div class="buttons spread"><span class="chip ${s.ok?"good":"bad"}">${s.ok?e("done"):e("failed")}</span><span>${w(s.took)}</span><button class="quiet" onClick=${()=>x(s.text)}>${e("Copy")}</button></div>
        ${s.ok?a`<pre tabindex="0" aria-label=${e("Answer")}>${s.text.slice(0,E)}</pre>`:a`<${g} kind="error">${s.text}<//>`}</div>`}
    </section>
    <${O} />
  </div>`}function O(){let[l,c]=r([]);return h(()=>{let t=0;return f.on((p,i,$)=>c(s=>[{id:++t,at:Date.now(),name:p,seq:$,text:JSON.stringify(i)},...s].slice(0,N)))},[]),a`<section class="card"><h2>${e("Events")}</h2>
    <div class="log-lines short" tabindex="0" role="log" aria-label=${e("Events")} aria-live="off">
      ${l.length?l.map(t=>a`<div key=${t.id}><span>${y(t.at)}</span> <b>${t.name}</b> <i>${t.seq??""}</i> <small>${t.text.slice(0,400)}</small></div>`):a`<p class="hint">${e("None since this page was opened.")}</p>`}
    </div></section>`}export{P as Debug};
