package web_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// scriptInjections returns texts that a page must escape. Unescaped, they would run as a script or change the
// structure of the page.
func scriptInjections() []string {
	return []string{
		`<script>alert(1)</script>`, `<img src=x onerror=alert(1)>`, `"><script>alert(1)</script>`, `'><img src=x onerror=alert(1)>`,
		`<svg onload=alert(1)>`, `</script><script>alert(1)</script>`, `javascript:alert(1)`, `<a href="javascript:alert(1)">x</a>`,
		`<iframe srcdoc="<script>alert(1)</script>">`, `<body onload=alert(1)>`, `" onmouseover="alert(1)`, `' onfocus='alert(1)' autofocus='`,
		`<details open ontoggle=alert(1)>`, `<video><source onerror=alert(1)>`, `<math><mtext><script>alert(1)</script>`, `{{.Data}}`,
		`<template><script>alert(1)</script></template>`, `</textarea><script>alert(1)</script>`, `</title><script>alert(1)</script>`, `</pre><script>alert(1)</script>`,
		`<!--<script>alert(1)</script>`, `<![CDATA[<script>alert(1)</script>]]>`, `<style>@import 'javascript:alert(1)'</style>`, `<link rel=stylesheet href=//evil.example/x.css>`,
		`<base href=//evil.example/>`, `<form action=//evil.example/><button>`, `<meta http-equiv=refresh content="0;url=javascript:alert(1)">`, `<object data=javascript:alert(1)>`,
		`<embed src=javascript:alert(1)>`, `<input autofocus onfocus=alert(1)>`, `<select autofocus onfocus=alert(1)>`, `<marquee onstart=alert(1)>`,
		`<svg><animate onbegin=alert(1) attributeName=x>`, `<svg><a xlink:href="javascript:alert(1)">x</a></svg>`, `<button formaction=javascript:alert(1)>`, `<isindex action=javascript:alert(1)>`,
		"`-alert(1)-`", `${alert(1)}`, `\u003cscript\u003ealert(1)\u003c/script\u003e`, `&lt;script&gt;alert(1)&lt;/script&gt;`,
		`%3Cscript%3Ealert(1)%3C/script%3E`, `<scr<script>ipt>alert(1)</script>`, `<SCRIPT SRC=//evil.example/x.js></SCRIPT>`, "<img\tsrc=x\tonerror=alert(1)>",
		`<div style="background:url(javascript:alert(1))">`, `<p id=main>`, `<p id=pulse>`, `<time datetime="x" onclick=alert(1)>`,
		`data: {"main":"<script>alert(1)</script>"}`, "\n\ndata: {\"gone\":true}\n\n", `" data-live="//evil.example/`, `<x data-until=0 data-slot=1>`,
		"\u202e<script>alert(1)</script>", "\ufeff<script>alert(1)</script>", `<ａ onclick=alert(1)>`, `<img src="x` + "`" + `onerror=alert(1)">`,
		`--><script>alert(1)</script>`, `]]><script>alert(1)</script>`, `*/alert(1)/*`, `;alert(1)//`,
	}
}

// TestTextIsOnlyText checks that every page shows the input of devices and operators as text, also when
// it arrives over the stream.
func TestTextIsOnlyText(t *testing.T) {
	t.Parallel()
	texts := scriptInjections()
	if len(texts) < 60 {
		t.Fatalf("%d texts", len(texts))
	}
	if testing.Short() { // make test-long uses all texts
		texts = texts[:12]
	}
	b := startEmbedded(t)
	b.createPool("p", 200)
	tab := openTab(t)
	open := tab.openSecondTab()
	open.open(b.URL + "/activity")
	open.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	for i, text := range texts {
		device := fmt.Sprintf("d-%d", i)
		b.Do("POST", "/v1/batches", map[string]any{"name": text, "pool": "p", "kind": strings.ToValidUTF8(text[:min(len(text), 60)], ""), "payload": map[string]any{text: text}, "devices": []string{device}}, nil)
		g := b.ReportUntilGranted(device)
		result := map[string]any{"task": g.ID, "token": g.Token, "status": "rejected", "error": text, "output": map[string]any{text: text}}
		b.sendReport(device, map[string]any{"accept": false, "attributes": map[string]any{"a": text}, "results": []map[string]any{result}})
	}
	b.Do("PUT", "/v1/limits/sms", map[string]any{"limits": []any{map[string]any{"name": "each", "per": "facts.text", "algorithm": "fixed", "per_ms": 3_600_000, "max": 3, "reveal": true}}}, nil)
	for _, text := range texts {
		b.Do("POST", "/v1/limits/sms/take", map[string]any{"facts": map[string]any{"text": text}}, nil)
	}
	b.Do("POST", "/v1/pools/p/pause", map[string]any{"reason": texts[1]}, nil)
	addresses := []string{"/", "/pools/p", "/pools/p/waiting", "/pools/p/failures", "/pools/p/slots/0", "/batches", "/batches?page=", "/?sort=name", "/tasks", "/activity", "/devices", "/limits/sms"}
	for i, text := range texts {
		addresses = append(addresses, fmt.Sprintf("/tasks/%d", i+1))
		one := []string{"/tasks?error=", "/activity?actor=", "/?done=", "/find?q=", "/sign-in?next=", "/new-batch?pool="}[i%6]
		addresses = append(addresses, one+url.QueryEscape(text))
		if i%6 == 0 {
			addresses = append(addresses, fmt.Sprintf("/batches/%d", i+1), fmt.Sprintf("/devices/d-%d", i))
			chosen := url.Values{"field": {text}, "column": {text}, "tag": {text}}.Encode()
			addresses = append(addresses, fmt.Sprintf("/batches/%d?%s", i+1, chosen), fmt.Sprintf("/new-batch?from=%d", i+1), fmt.Sprintf("/batches/%d/edit", i+1))
		}
	}
	for _, address := range addresses {
		tab.open(b.URL + address)
		if n := evalJS[int](tab, `document.querySelectorAll("main script, main iframe, main img, main object, main embed, main base, main link, main style, main [onerror], main [onload], main [onclick], main [onfocus], main [onmouseover]").length`); n > 0 {
			t.Errorf("%s: %d elements that are not ours", address, n)
		}
		if hrefs := evalJS[string](tab, `[...document.querySelectorAll("a[href], form[action]")].map(a => a.href || a.action).filter(h => !h.startsWith(location.origin)).join(" ")`); hrefs != "" {
			t.Errorf("%s leads to %s", address, hrefs)
		}
		var number int // each error is shown as it was written
		if n, _ := fmt.Sscanf(address, "/tasks/%d", &number); n == 1 && tab.elementText(".problem") != texts[number-1] {
			t.Errorf("the error %q is shown as %q", texts[number-1], tab.elementText(".problem"))
		}
	}
	open.waitForJS(`document.getElementById("activity").textContent.includes("pool.changed")`)
}
