package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// rawConnection is one keep-alive HTTP connection, which a device or several devices in turn use. It needs less processor
// time than a client of net/http, so that a row of the table measures the server and not the client.
type rawConnection struct {
	net.Conn
	in              *bufio.Reader
	request         []byte
	body            []byte
	usesDeviceToken bool // true if reports use the tokens of insertDeviceTokens instead of the fleet token
}

func dial(addr string) (*rawConnection, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &rawConnection{Conn: c, in: bufio.NewReader(c)}, nil
}

func (c *rawConnection) requestTask(device string) (task, token int64, err error) {
	reply, err := c.postReport(device, []byte(`{}`))
	if err != nil {
		return 0, 0, err
	}
	task, token = parseGrant(reply)
	return task, token, nil
}

func (c *rawConnection) finishTask(device string, task, token int64) error {
	_, err := c.postReport(device, fmt.Appendf(nil, `{"results":[{"task":%d,"token":%d,"status":"succeeded"}],"accept":false}`, task, token))
	return err
}

// postReport sends a report of the device and returns the body of the response. The next call overwrites the body.
func (c *rawConnection) postReport(device string, report []byte) ([]byte, error) {
	token := fleetToken
	if c.usesDeviceToken {
		token = "own-" + device
	}
	c.request = fmt.Appendf(c.request[:0], "POST /v1/devices/%s/report HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", device, token, len(report))
	c.request = append(c.request, report...)
	if _, err := c.Write(c.request); err != nil {
		return nil, err
	}
	return c.readReply()
}

var errStatus = errors.New("not answered with 200")

func (c *rawConnection) readReply() ([]byte, error) {
	status, err := c.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	ok := bytes.HasPrefix(status, []byte("HTTP/1.1 200"))
	statusLine, length := "", -1
	if !ok {
		statusLine = string(status)
	}
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("Content-Length")) {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
	if length < 0 {
		return nil, fmt.Errorf("%s: an answer without a length", statusLine)
	}
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return nil, err
	}
	switch {
	case bytes.Contains(c.body, []byte(`"code":"unavailable"`)):
		return nil, errBusy
	case !ok:
		return nil, fmt.Errorf("%w: %s %s", errStatus, statusLine, c.body)
	}
	return c.body, nil
}

// parseGrant returns the ids of the task and the token in a reply. If nothing was granted, task is 0.
func parseGrant(reply []byte) (task, token int64) {
	_, rest, found := bytes.Cut(reply, []byte(`"task":{`))
	if !found {
		return 0, 0
	}
	return numberAfter(rest, `"id":`), numberAfter(rest, `"token":`)
}

func numberAfter(reply []byte, name string) (n int64) {
	_, rest, _ := bytes.Cut(reply, []byte(name))
	for _, digit := range rest {
		if digit < '0' || digit > '9' {
			break
		}
		n = 10*n + int64(digit-'0')
	}
	return n
}
