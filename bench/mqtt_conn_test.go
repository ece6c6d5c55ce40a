package bench

import (
	"bufio"
	"bytes"
	wire "encoding/binary" // renamed, because this package has a flag named binary
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// These are the types of MQTT packets that a device sends or receives, in the upper half of the first byte of a
// packet.
const (
	connectPacket   = 0x10
	connackPacket   = 0x20
	publishPacket   = 0x30
	pubackPacket    = 0x40
	subscribePacket = 0x82
	subackPacket    = 0x90
	qos1            = 0x02
)

// replyTimeout is longer than a working server ever needs for a reply.
const replyTimeout = 10 * time.Second

// mqttSession is the connection of one device to the broker. It builds its packets by hand and uses no goroutine,
// so that ten thousand sessions need little processor time compared with the servers that are measured.
type mqttSession struct {
	net.Conn
	in       *bufio.Reader
	topic    string
	body     []byte // content of the packet that was read last
	packetID uint16
}

// openMQTTSession connects a device to the broker, and subscribes to filter, the topic of the replies to the
// device.
func openMQTTSession(addr, device, filter string) (*mqttSession, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &mqttSession{Conn: c, in: bufio.NewReaderSize(c, 512), topic: "fleet/v1/" + device}
	hello := append([]byte("\x00\x04MQTT\x04\x02\x00\x00"), lengthPrefixed(device)...) // a clean session, without keepalive
	topic := append(append([]byte{0, 1}, lengthPrefixed(filter)...), 1)
	err = s.exchange(connectPacket, hello, connackPacket)
	if err == nil {
		err = s.exchange(subscribePacket, topic, subackPacket)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("connecting %s: %w", device, err)
	}
	return s, nil
}

func lengthPrefixed(text string) []byte {
	return append(wire.BigEndian.AppendUint16(nil, uint16(len(text))), text...)
}

func (s *mqttSession) exchange(packetKind byte, body []byte, wantedKind byte) error {
	if err := s.sendPacket(packetKind, body); err != nil {
		return err
	}
	got, err := s.readPacket()
	if err == nil && got&0xf0 != wantedKind {
		err = fmt.Errorf("packet %x, want %x", got, wantedKind)
	}
	return err
}

func (s *mqttSession) sendPacket(packetKind byte, body []byte) error {
	_, err := s.Write(encodePacket(packetKind, body))
	return err
}

func encodePacket(packetKind byte, body []byte) []byte {
	return append(wire.AppendUvarint([]byte{packetKind}, uint64(len(body))), body...)
}

// readPacket reads one packet. It stores the content in s.body and returns the first byte.
func (s *mqttSession) readPacket() (byte, error) {
	kind, err := s.in.ReadByte()
	if err != nil {
		return 0, err
	}
	length, err := wire.ReadUvarint(s.in)
	if err != nil || length > 1<<20 {
		return 0, errors.Join(err, fmt.Errorf("a packet of %d bytes", length))
	}
	if uint64(cap(s.body)) < length {
		s.body = make([]byte, length)
	}
	s.body = s.body[:length]
	_, err = io.ReadFull(s.in, s.body)
	return kind, err
}

// exchangeReport publishes a report and returns the reply to it. The next call overwrites the reply.
func (s *mqttSession) exchangeReport() ([]byte, error) {
	s.packetID = max(s.packetID+1, 1)
	_ = s.SetReadDeadline(time.Now().Add(replyTimeout))
	body := wire.BigEndian.AppendUint16(lengthPrefixed(s.topic+"/report"), s.packetID)
	if err := s.sendPacket(publishPacket|qos1, fmt.Appendf(body, `{"id":"%d"}`, s.packetID)); err != nil {
		return nil, err
	}
	for {
		kind, err := s.readPacket()
		if err != nil {
			return nil, err
		}
		if kind&0xf0 != publishPacket {
			continue // the broker has acknowledged the report; the reply follows
		}
		reply := s.body[2+len(s.topic)+len("/reply"):]
		if kind&qos1 != 0 {
			if err := s.sendPacket(pubackPacket, reply[:2]); err != nil {
				return nil, err
			}
			reply = reply[2:]
		}
		if bytes.Contains(reply, fmt.Appendf(nil, `"re":"%d"`, s.packetID)) {
			return reply, nil
		}
	}
}

// mqttSessions holds the session of each device. A device has only one report in flight. There are far more
// sessions than clients of the load.
type mqttSessions map[string]*mqttSession

// requestTask sends a report of an idle device over its session.
func (f mqttSessions) requestTask(device string) (task, token int64, err error) {
	reply, err := f[device].exchangeReport()
	switch {
	case err != nil:
		return 0, 0, err
	case bytes.Contains(reply, []byte(`"reason":"unavailable"`)), bytes.Contains(reply, []byte(`"reason":"busy_server"`)):
		return 0, 0, errBusy
	case !bytes.Contains(reply, []byte(`"reason":"none"`)):
		return 0, 0, fmt.Errorf("%s was told %s", device, reply)
	}
	task, token = parseGrant(reply)
	return task, token, nil
}

func (mqttSessions) finishTask(string, int64, int64) error {
	return errors.New("an idle device has no task to end")
}

// Close leaves the sessions open, because other clients of the load use them.
func (mqttSessions) Close() error { return nil }
