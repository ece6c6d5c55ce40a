package api_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

const anotherFleetToken = "another-fleet-token-of-the-tests"

// openUnsentReport starts a report of the device with a body of 900 bytes, but sends none of these bytes.
func (b *testAPI) openUnsentReport(device, token string) {
	b.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.URL, "http://"))
	b.Must(err)
	b.Cleanup(func() { conn.Close() })
	_, err = fmt.Fprintf(conn, "POST /v1/devices/%s/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 900\r\n\r\n", device, token)
	b.Must(err)
}

// waitForTooManyBodies waits until a report of the device is refused because too many announced bodies have not
// arrived.
func (b *testAPI) waitForTooManyBodies(device, token string) {
	b.Helper()
	b.Await("a refusal of "+device, func() bool {
		a := b.Call("POST", "/v1/devices/"+device+"/report", token, `{}`)
		return a.Status == http.StatusServiceUnavailable && strings.Contains(string(a.Body), "too many incomplete bodies")
	})
}

// expectReportsAccepted sends a short and a long report of each of three devices. All of them must be accepted.
func (b *testAPI) expectReportsAccepted(token func(device string) string) {
	b.Helper()
	for n := range 3 {
		path := fmt.Sprintf("/v1/devices/d-%d/report", n)
		b.Call("POST", path, token(fmt.Sprint("d-", n)), `{}`).Expect(200)
		b.Call("POST", path, token(fmt.Sprint("d-", n)), `{"x":"`+strings.Repeat("x", 40<<10)+`"}`).Expect(200)
	}
}

func constantToken(token string) func(string) string { return func(string) string { return token } }

// A device announces bodies and does not send them. It uses up only its own share of open bodies, and no permits
// for reports. All other devices are served, even from the same address.
func TestUnreadBodiesAreBoundedPerDevice(t *testing.T) {
	t.Parallel()
	const most = 8 // twice the share of a device
	b := startEmbedded(t, func(s *rig.Options) { s.Reports.MaxReports = most })
	token := b.createDevice("slow")
	b.Call("POST", "/v1/devices/slow/block", adminToken, nil).Expect(200)
	for range most {
		b.openUnsentReport("slow", token)
	}
	b.waitForTooManyBodies("slow", token)
	b.expectReportsAccepted(constantToken(fleetToken))
}

// Clients with a fleet token announce bodies in the names of many devices and do not send them. A fleet token gets
// half of the shares. Devices with tokens of their own, or with another fleet token, get the rest.
func TestUnreadBodiesAreBoundedPerFleetToken(t *testing.T) {
	t.Parallel()
	const most = 8
	b := startEmbedded(t, func(s *rig.Options) {
		s.Reports.MaxReports = most
		s.Dispatcher.FleetTokens = []string{fleetToken, anotherFleetToken}
	})
	own := make(map[string]string)
	for n := range 3 {
		device := fmt.Sprint("d-", n)
		own[device] = b.createDevice(device)
	}
	for n := range 8 * most {
		b.openUnsentReport(fmt.Sprint("stolen-", n), fleetToken)
	}
	b.waitForTooManyBodies("one-more", fleetToken)
	b.expectReportsAccepted(constantToken(anotherFleetToken))
	b.expectReportsAccepted(func(device string) string { return own[device] })
}

// An attacker opens more connections than the maximum number of concurrent reports, with the token of one device
// and with the fleet token, and sends no bodies. This attack once stopped all reports over HTTP.
func TestPromisedBodiesStopNobody(t *testing.T) {
	t.Parallel()
	const connections = 620
	b := startEmbedded(t)
	token := b.createDevice("slow")
	for range connections {
		b.openUnsentReport("slow", token)
	}
	b.waitForTooManyBodies("slow", token)
	b.expectReportsAccepted(constantToken(fleetToken))
	for n := range connections {
		b.openUnsentReport(fmt.Sprint("stolen-", n%(connections/4)), fleetToken)
	}
	b.waitForTooManyBodies("stolen-0", fleetToken)
	b.expectReportsAccepted(constantToken(fleetToken))
}

// A body that is read into memory needs many times its size. So only a few large bodies are read at once, and only
// one for each token. Small bodies do not wait.
func TestLargeBodiesWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	one, another := b.createToken("admin"), b.createToken("admin")
	var bodies []*io.PipeWriter
	ended := make(chan int, 5)
	for _, token := range []string{one, one, another, another, another} {
		body, writer := io.Pipe()
		bodies = append(bodies, writer)
		go func() {
			request, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, b.URL+"/v1/pools/q", body)
			request.Header.Set("Authorization", "Bearer "+token)
			request.Header.Set("Content-Type", "application/json")
			response, err := http.DefaultTransport.RoundTrip(request)
			if err != nil {
				ended <- 0
				return
			}
			response.Body.Close()
			ended <- response.StatusCode
		}()
	}
	b.Await("two large bodies", func() bool { return b.API.LargeBodies() == 2 })
	b.Call("PUT", "/v1/pools/p", one, `{"capacity":1}`).Expect(201)
	for _, body := range bodies {
		go func() {
			_, _ = io.WriteString(body, `{"capacity":1}`)
			_ = body.Close()
		}()
	}
	for range bodies {
		if status := <-ended; status/100 != 2 {
			t.Errorf("status %d", status)
		}
	}
}
