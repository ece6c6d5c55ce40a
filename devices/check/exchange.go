package check

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	devhttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

type exchange struct {
	devices.Report
	at       time.Time // arrival of the report
	device   devices.ID
	body     []byte
	err      error         // why the report is not valid
	isHTTP   bool          // false: the report came over MQTT
	conn     int           // HTTP: number of the connection, in the order in which connections were opened
	token    string        // HTTP: the bearer token
	wait     time.Duration // HTTP: how long the answer may wait (long poll)
	transmit func(answer)  // sends the answer to the device; nil after it was called
}

func newExchange(device devices.ID, body []byte) *exchange {
	x := &exchange{at: time.Now(), device: device, body: body}
	x.Report, x.err = devices.DecodeReport(body)
	for _, result := range x.Results {
		if result.Invalid != "" {
			x.err = errors.New("entry of results: " + result.Invalid)
		}
	}
	for _, running := range x.Running {
		if running.Invalid != "" {
			x.err = errors.New("entry of running: " + running.Invalid)
		}
	}
	return x
}

func (x *exchange) resultOf(granted *task) *devices.Result {
	if i := slices.IndexFunc(x.Results, func(r devices.Result) bool { return r.Token == granted.Token }); i >= 0 {
		return &x.Results[i]
	}
	return nil
}

// listsAsRunning reports whether the list of running tasks in the report contains the task granted.
func (x *exchange) listsAsRunning(granted *task) bool {
	return slices.ContainsFunc(x.Running, func(r devices.Running) bool { return r.Token == granted.Token })
}

// answer is the answer to a report. If isLost is true, nothing is sent to the device. If status is not 0, a refusal is sent. Otherwise a reply
// is sent.
type answer struct {
	devices.Reply
	hasUnknown bool          // the reply has unknown fields
	isLost     bool          // the connection breaks
	status     int           // HTTP status of a refusal: 413 or 503; 0 for a reply
	after      time.Duration // time after which a refused device may report again
	isBare     bool          // over HTTP the refusal has Retry-After and no body
}

// encode returns the reply as it is sent over HTTP and MQTT, or the refusal as it is sent over MQTT.
func (a answer) encode() []byte {
	if a.status != 0 {
		return a.refusal().Reply(a.Re, a.after).Encode()
	}
	text := string(a.Encode())
	if a.hasUnknown {
		text = strings.Replace(text, `"task":{`, `"task":{"colour":{"r":[1,2.5e3,null,true]},`, 1)
		text = `{"weather":[{"wind":"\u00e9\"]}"}],` + text[1:]
	}
	return []byte(text)
}

func (a answer) refusal() devices.ReportRefusal {
	if a.status == http.StatusRequestEntityTooLarge {
		return devices.RefusalOf(&devices.Error{Reason: devices.ReasonTooLarge, Code: devices.CodeBodyTooLarge, Detail: "refused by the check"})
	}
	return devices.RefusalOf(devices.ErrUnavailable)
}

func (a answer) writeHTTP(w http.ResponseWriter) {
	switch body := a.encode(); {
	case a.isLost:
		panic(http.ErrAbortHandler) // net/http closes the connection
	case a.isBare:
		w.Header().Set("Retry-After", strconv.Itoa(int(a.after.Seconds())))
		w.WriteHeader(a.status)
	case a.status != 0:
		devhttp.WriteRefusal(w, a.refusal(), a.after)
	default:
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	}
}

// connKey is the key of the number of a connection in the context of its requests.
type connKey struct{}

func (r *run) serveHTTP(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/devices/{device}/report", r.answerHTTP)
	opened := 0
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
		opened++ // net/http calls ConnContext for one connection at a time
		return context.WithValue(ctx, connKey{}, opened)
	}}
	defer rescue.After(ctx, server.Close)()
	return server.Serve(r.HTTP)
}

func (r *run) answerHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(io.LimitReader(request.Body, devices.MaxBody+1)) // DecodeReport refuses the last byte
	if err != nil {
		return // the connection broke
	}
	answers := make(chan answer, 1)
	x := newExchange(devices.ID(request.PathValue("device")), body)
	x.isHTTP, x.token, x.wait = true, devhttp.Bearer(request.Header.Get("Authorization")), devhttp.PreferredWait(request.Header)
	x.conn, _ = request.Context().Value(connKey{}).(int)
	x.transmit = func(a answer) { answers <- a }
	r.runInLoop(func() { r.checkReport(x) })
	select {
	case a := <-answers:
		a.writeHTTP(w)
	case <-request.Context().Done():
	}
}
