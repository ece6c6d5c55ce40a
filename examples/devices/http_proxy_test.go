package devices_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"
)

// httpProxy passes reports on to the server at target, unless the faults of the trial decide otherwise.
type httpProxy struct {
	*trial

	target string
}

// newHTTPProxy starts a proxy, and returns its address. If certificate is nil, it has no TLS.
func newHTTPProxy(t *trial, target string, certificate *tls.Config) string {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/devices/{device}/report", &httpProxy{trial: t, target: target})
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // handshakes of killed devices
	if server.TLS = certificate; certificate != nil {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// longestPark replaces the value of the device's header Prefer, so that a trial is short.
const longestPark = "wait=3"

// ServeHTTP handles one report. A lost report or reply closes its connection.
func (p *httpProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	device := r.PathValue("device")
	body, err := io.ReadAll(r.Body)
	if err != nil || p.faults.isCut(device) {
		panic(http.ErrAbortHandler)
	}
	v := p.faults.onReport(device, p.traffic.recordReport(device, body), body)
	p.disturb(r, device, v)
	switch {
	case v.isBusy:
		p.faults.recordBusy(device)
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case v.replayed != nil:
		_, _ = w.Write(v.replayed)
		return
	case v.isTwice:
		first := r.Clone(r.Context())
		first.Header.Del("Prefer") // a parked report would only end with the second one
		p.forward(first, body)
	}
	status, header, answer := p.forward(r, body)
	decoded := p.traffic.recordAnswer(answer)
	v = p.faults.onReply(device, decoded, answer)
	p.disturb(r, device, v)
	p.traffic.recordDelivery(device, decoded)
	for _, name := range []string{"Content-Type", "Retry-After", "Preference-Applied"} {
		if value := header.Get(name); value != "" {
			w.Header().Set(name, value)
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write(v.body)
	_ = http.NewResponseController(w).Flush()
	p.afterDelivery(device, v)
}

// disturb delays a message, and ends its connection if it is lost.
func (p *httpProxy) disturb(r *http.Request, device string, v verdict) {
	if v.kills && v.isLost {
		p.kill(device)
	}
	if v.delay > 0 {
		select {
		case <-time.After(v.delay):
		case <-r.Context().Done():
		}
	}
	if v.hangs {
		<-r.Context().Done()
	}
	if v.isLost || v.hangs {
		panic(http.ErrAbortHandler)
	}
}

// forward sends the report to the server. If the device closes its connection before the answer, the proxy closes the
// connection to the server, too.
func (p *httpProxy) forward(r *http.Request, body []byte) (status int, header http.Header, answer []byte) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, p.target+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	request.Header = r.Header.Clone()
	if request.Header.Get("Prefer") != "" {
		request.Header.Set("Prefer", longestPark)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return response.StatusCode, response.Header, answer
}
