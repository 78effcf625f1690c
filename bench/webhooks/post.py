"""Posts to a webhook server over HTTPS, whose certificate must be signed by the authority in its Secret."""
import http.client
import json
import ssl


class Server:
    def __init__(self, port, ca):
        context = ssl.create_default_context(cafile=ca)
        self.connect = lambda: http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        self.connection = self.connect()

    def post(self, path, body, content="application/json"):
        """Returns the status and the body of the answer; 0 if the server closes the connection."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        for _ in range(2):
            try:
                self.connection.request("POST", path, data, {"Content-Type": content})
                answer = self.connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException) as problem:
                self.connection.close()
                self.connection = self.connect()
                text = str(problem).encode()
        return 0, text
