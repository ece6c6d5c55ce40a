package hawkbit

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// artifactServer sends the image slowly to the devices, and counts the open downloads, which are the devices in the external system. It does not
// know the slots.
type artifactServer struct {
	http.Server

	url, address string
	image        image

	mu      sync.Mutex
	devices map[string]*download
	open    map[string]int // open downloads of each device
	highest int            // the highest number of devices inside
	all     int            // number of downloads
}

// download describes the downloads of one device.
type download struct {
	over    time.Duration // duration of a download
	isCut   bool          // the next download is to be cut
	entered chan<- struct{}
}

const (
	// pieces is the number of pieces in which a download is sent.
	pieces = 20
	// unread is the size of the send buffer of a connection. It is much smaller than an image, so the download of a stopped client stays open.
	unread = 16 << 10
)

func startArtifacts(t *testing.T, of image) *artifactServer {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	address := listener.Addr().String()
	a := &artifactServer{url: "http://" + address, address: address, image: of, devices: map[string]*download{}, open: map[string]int{}}
	a.Handler, a.ReadHeaderTimeout = http.HandlerFunc(a.send), time.Minute
	a.ConnContext = func(ctx context.Context, connection net.Conn) context.Context {
		if tcp, ok := connection.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(unread)
		}
		return ctx
	}
	go func() { _ = a.Serve(listener) }()
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// serve sets the length of a device's downloads, and whether they are cut. The device is notified when a download begins.
func (a *artifactServer) serve(device string, over time.Duration, isCut bool, entered chan<- struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.devices[device] = &download{over, isCut, entered}
}

// send sends the image. The path is /DEVICE/image.swu.
func (a *artifactServer) send(response http.ResponseWriter, request *http.Request) {
	device, _, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
	content := a.image.content
	response.Header().Set("Accept-Ranges", "bytes")
	if from, ok := strings.CutPrefix(request.Header.Get("Range"), "bytes="); ok {
		offset, err := strconv.Atoi(strings.TrimSuffix(from, "-"))
		if err != nil || offset >= len(content) {
			http.Error(response, "range", http.StatusRequestedRangeNotSatisfiable)
			return
		}
		response.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, len(content)-1, len(content)))
		content = content[offset:]
	}
	response.Header().Set("Content-Length", strconv.Itoa(len(content)))
	if request.Method == http.MethodHead {
		return
	}
	if request.Header.Get("Range") != "" && len(content) < len(a.image.content) {
		response.WriteHeader(http.StatusPartialContent)
	}
	over, isCut := a.enter(device)
	defer a.leave(device)
	sendSlowly(response, request, content, over, isCut)
}

// sendSlowly sends content over a time. If isCut is true, it breaks the connection in the middle.
func sendSlowly(response http.ResponseWriter, request *http.Request, content []byte, over time.Duration, isCut bool) {
	tick := time.NewTicker(max(over/pieces, time.Millisecond))
	defer tick.Stop()
	for i := range pieces {
		from, to := i*len(content)/pieces, (i+1)*len(content)/pieces
		if _, err := response.Write(content[from:to]); err != nil {
			return
		}
		_ = http.NewResponseController(response).Flush()
		if isCut && i == pieces/2 {
			panic(http.ErrAbortHandler)
		}
		select {
		case <-tick.C:
		case <-request.Context().Done():
			return
		}
	}
}

// enter counts a device as being in the external system until leave is called.
func (a *artifactServer) enter(device string) (over time.Duration, isCut bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[device]++
	a.all++
	a.highest = max(a.highest, len(a.open))
	d := a.devices[device]
	isCut, d.isCut = d.isCut, false
	select {
	case d.entered <- struct{}{}:
	default: // nobody has received the last element yet
	}
	return d.over, isCut
}

// leave ends a download of the device.
func (a *artifactServer) leave(device string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[device]--; a.open[device] == 0 {
		delete(a.open, device)
	}
}

// counts returns the highest number of devices that were in the external system at the same time, and the number of downloads.
func (a *artifactServer) counts() (highest, downloads int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.highest, a.all
}
