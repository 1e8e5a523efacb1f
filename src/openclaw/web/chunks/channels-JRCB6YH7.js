import{b as k,c as y}from"./chunk-5ENP5ZVT.js";import{b as g}from"./chunk-Z5JSN5I3.js";import{d as m,e as f,h as d,j as h,k as b}from"./chunk-3JIDODKK.js";import{c as i,d as $,j as l,q as t,t as u,u as p}from"./chunk-M2XPJY4L.js";import"./chunk-DCANE7XH.js";function O(){let[a,o]=i(!1),s=h("channels.status",a?{probe:!0}:{});$(()=>u.on(r=>r==="health"&&s.reload()),[]);let{data:e}=s;return l`<div class="page">
    <${f} title=${t("Channels")}>
      <button onClick=${()=>(o(!0),s.reload())}>${t("Try the connections")}</button><button onClick=${s.reload}>${t("Refresh")}</button>
    <//>
    <${E} />
    ${e?e.channelOrder.length?e.channelOrder.map(r=>l`<${C} key=${r} name=${r} label=${e.channelLabels[r]||r} accounts=${e.channelAccounts[r]||[]} />`):l`<${m}>${t("No channel is configured.")} <a href=${g("settings",{find:"channels"})}>${t("Settings")}</a><//>`:b(s)}
  </div>`}function w(a){return a.enabled===!1?["",t("off")]:a.lastError?["bad",t("has a problem")]:a.connected||a.running?["good",t("connected")]:["warn",t("not connected")]}function C({label:a,name:o,accounts:s}){return l`<section class="card"><h2>${a}</h2><ul class="plain-list">${s.map(e=>{let[r,n]=w(e),c=e.probe;return l`<li key=${e.accountId}><span><strong>${e.name||e.accountId||o}</strong>
        ${e.lastError&&l`<br /><small class="bad">${e.lastError}</small>`}
        <br /><small>${e.lastInboundAt?t("last message {ago}",{ago:y(e.lastInboundAt)}):t("no message yet")}${e.lastStartAt?` \xB7 ${t("since {time}",{time:k(e.lastStartAt)})}`:""}</small>
        ${c&&l`<br /><small>${c.ok?t("The connection works."):c.error||t("The connection does not work.")}</small>`}</span>
      <span class="chip ${r}">${n}</span></li>`})}</ul></section>`}function E(){let a=h("pairing.list"),o=a.data?.requests||[],[s,e]=i(!0);if($(()=>{let n=setInterval(a.reload,15e3);return()=>clearInterval(n)},[]),!o.length)return null;let r=n=>p("pairing.approve",{code:n.code,channel:n.channel,notify:s}).then(c=>{d(c.notifyError?new Error(c.notifyError):t("Let in")),a.reload()},d);return l`<section class="card"><h2>${t("People who ask to be let in")}</h2>
    <ul class="plain-list">${o.map(n=>l`<li key=${`${n.channel}${n.code}`}><span><strong>${n.meta?.name||n.id}</strong><br /><small>${n.channel} · ${n.id} · ${t("code {code}",{code:n.code})}</small></span>
      <button class="primary" onClick=${()=>r(n)}>${t("Approve")}</button></li>`)}</ul>
    <label class="check"><input type="checkbox" checked=${s} onChange=${n=>e(n.target.checked)} /> ${t("Tell them on their channel")}</label>
  </section>`}export{O as Channels};
