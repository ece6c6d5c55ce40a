package hawkbit

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// artifactServer sends the image slowly to the devices, and counts the open downloads: the devices inside. It knows nothing of slots.
type artifactServer struct {
	*httptest.Server

	image   image
	seconds func(device string) float64 // duration of a download
	started func(device string)         // called when a download begins

	mu      sync.Mutex
	open    map[string]int // open downloads of each device
	highest int            // the highest number of devices inside
	cuts    map[string]int // downloads of the device that are still to be cut
	all     int            // number of downloads
}

// pieces is the number of pieces in which a download is sent.
const pieces = 20

func startArtifacts(t *testing.T, of image, seconds func(device string) float64) *artifactServer {
	t.Helper()
	a := &artifactServer{image: of, seconds: seconds, open: map[string]int{}, cuts: map[string]int{}, started: func(string) {}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// ServeHTTP sends the image. The path is /DEVICE/image.swu.
func (a *artifactServer) ServeHTTP(response http.ResponseWriter, request *http.Request) {
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
	leave, cut := a.enter(device)
	defer leave()
	a.started(device)
	a.send(response, request, content, time.Duration(a.seconds(device)*float64(time.Second)), cut)
}

// send sends content over a time. If cut is true, it breaks the connection in the middle.
func (a *artifactServer) send(response http.ResponseWriter, request *http.Request, content []byte, over time.Duration, cut bool) {
	tick := time.NewTicker(max(over/pieces, time.Millisecond))
	defer tick.Stop()
	for i := range pieces {
		from, to := i*len(content)/pieces, (i+1)*len(content)/pieces
		if _, err := response.Write(content[from:to]); err != nil {
			return
		}
		_ = http.NewResponseController(response).Flush()
		if cut && i == pieces/2 {
			panic(http.ErrAbortHandler)
		}
		select {
		case <-tick.C:
		case <-request.Context().Done():
			return
		}
	}
}

// enter counts a device as inside until leave is called. cut reports whether this download is to be cut.
func (a *artifactServer) enter(device string) (leave func(), cut bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[device]++
	a.all++
	a.highest = max(a.highest, len(a.open))
	if cut = a.cuts[device] > 0; cut {
		a.cuts[device]--
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.open[device]--; a.open[device] == 0 {
			delete(a.open, device)
		}
	}, cut
}

// highestInside returns the highest number of devices that were inside at the same time.
func (a *artifactServer) highestInside() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.highest
}
